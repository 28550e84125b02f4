"""Our grammars in the form that llguidance compiles."""

from __future__ import annotations

import json

import llguidance
from llguidance.gbnf_to_lark import gbnf_to_lark

from ...sessions.errors import RequestError
from ..engine.grammar import Grammar, GrammarKind

# At each place where JSON allows whitespace, so much of it: small models otherwise get lost in it.
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,40}"


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
            return llguidance.LLMatcher.grammar_from_regex(grammar.text)
        case GrammarKind.CHOICE:
            return llguidance.LLMatcher.grammar_from_lark(_lark_choice(grammar.text))
        case GrammarKind.LARK:
            return llguidance.LLMatcher.grammar_from_lark(grammar.text)
        case GrammarKind.GBNF:
            return llguidance.LLMatcher.grammar_from_lark(_lark_of_gbnf(grammar.text))


def _json_schema(text: str) -> str:
    try:
        return llguidance.LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": _WHITESPACE})
    except ValueError as error:
        raise RequestError(f"the schema is not a JSON object: {error}") from error


def _lark_choice(text: str) -> str:
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the choices are not JSON: {error}") from error
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise RequestError("a choice is one of several strings", remedy="send a list of one string or more")
    return "start: " + " | ".join(json.dumps(choice) for choice in choices)


def _lark_of_gbnf(text: str) -> str:
    try:
        return str(gbnf_to_lark(text))
    except Exception as error:  # noqa: BLE001 - the converter raises what Python raises: ValueError, IndexError, …
        raise RequestError(f"the grammar is not GBNF: {error}") from error
