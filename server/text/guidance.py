"""llguidance's side: our grammars and vocabularies in its form, and its limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import llguidance
from llguidance.gbnf_to_lark import gbnf_to_lark

from ...sessions.errors import RequestError
from ..engine.grammar import Grammar, GrammarKind
from .grammar_config import WHITESPACE
from .grammar_vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions


def parser_limits() -> llguidance.LLParserLimits:
    """What bounds a step of a matcher: its lexer's fuel (about 14,000 a millisecond) and the parser's items; and its
    memory: the lexer's states, of one or two kilobytes each.

    Errors do not quote the parser's state: they reach clients.
    """
    return llguidance.LLParserLimits(
        step_lexer_fuel=200_000, step_max_items=50_000, max_lexer_states=40_000, verbose_errors=False
    )


def guidance_text(grammar: Grammar) -> str:
    """``grammar`` as llguidance's own text.

    Raises:
        RequestError: it cannot be read. What can be read may still be refused by the compiler.
    """
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return _json_schema('{"type": "object"}')
        case GrammarKind.JSON_SCHEMA:
            return _json_schema(grammar.text)
        case GrammarKind.REGEX:
            return llguidance.LLMatcher.grammar_from_lark(_lark_of_regex(grammar.text))
        case GrammarKind.CHOICE:
            return llguidance.LLMatcher.grammar_from_lark(_lark_choice(grammar.text))
        case GrammarKind.LARK:
            return llguidance.LLMatcher.grammar_from_lark(grammar.text)
        case GrammarKind.GBNF:
            return llguidance.LLMatcher.grammar_from_lark(_lark_of_gbnf(grammar.text))


def _json_schema(text: str) -> str:
    defaults: JsonCompileOptions = {} if _says_whitespace(text) else {"whitespace_pattern": WHITESPACE}
    try:
        return llguidance.LLMatcher.grammar_from_json_schema(text, defaults=defaults)
    except ValueError as error:
        raise RequestError(f"the schema is not a JSON object: {error}") from error


def _says_whitespace(schema: str) -> bool:
    """The schema has its own word on whitespace: a pattern of ours would win over its ``whitespace_flexible``."""
    if "x-guidance" not in schema:
        return False
    try:
        options = json.loads(schema)["x-guidance"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return False
    return isinstance(options, dict) and "whitespace_flexible" in options


def _lark_of_regex(regex: str) -> str:
    r"""``\d``, ``\w`` and ``\s`` mean ASCII's: nobody who asks for digits waits for Thai ones."""
    try:
        return f"start: /{llguidance.regex_to_lark(regex, 'dws')}/"
    except ValueError as error:
        raise RequestError(f"the regular expression cannot be used: {error}") from error


def _lark_choice(text: str) -> str:
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the choices are not JSON: {error}") from error
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise RequestError("a choice is one of several strings", remedy="send a list of one string or more")
    # One terminal: as alternatives of a rule, more than 2,000 would not fit a row of the parser.
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice) for choice in choices)


def _lark_of_gbnf(text: str) -> str:
    try:
        return str(gbnf_to_lark(text))
    except Exception as error:
        raise RequestError(f"the grammar is not GBNF: {error}") from error


class _Wrapped:
    """The attributes that llguidance reads of a tokenizer."""

    def __init__(self, vocabulary: GrammarVocabulary, encode: Callable[[str], list[int]]) -> None:
        self.tokens = vocabulary.tokens
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.bos_token_id: int | None = None
        self.special_token_ids = vocabulary.special_token_ids
        self._encode = encode

    def __call__(self, text: bytes) -> list[int]:
        return self._encode(text.decode())


def guidance_tokenizer(vocabulary: GrammarVocabulary, encode: Callable[[str], list[int]]) -> llguidance.LLTokenizer:
    """llguidance's tokenizer; it takes a quarter of a second. ``encode`` says which tokens forced text becomes."""
    wrapper = llguidance.TokenizerWrapper(_Wrapped(vocabulary, encode))
    return llguidance.LLTokenizer(wrapper, eos_token=vocabulary.eos_token_ids)
