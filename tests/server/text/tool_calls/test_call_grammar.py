"""Grammars of required calls: what they allow is what the parser reads, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import pytest
from byte_text import byte_tokenizer
from call_text import Parsed

from sessile.server.text.answer_format import AnswerFormat, ReasoningFormat, ToolFormat
from sessile.server.text.grammar_vocabulary import GrammarVocabulary
from sessile.server.text.guidance import guidance_text, guidance_tokenizer, parser_limits
from sessile.server.text.tokenizer import Tokenizer
from sessile.server.text.tool_calls import CallNumbers

SEARCH = {
    "name": "search",
    "parameters": {
        "type": "object",
        "properties": {"q": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["q"],
        "additionalProperties": False,
    },
}
NOW: dict[str, Any] = {"name": "now"}
SPECIAL = ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]")


def accepts(tokenizer: Tokenizer, grammar_of: Any, text: str) -> bool:
    """Whether the whole text is allowed, token by token, and may end there."""
    special = {tokenizer.token_id(name): name for name in tokenizer.special_texts}
    by_name = {name: token_id for token_id, name in special.items() if token_id is not None}
    grammar = grammar_of(by_name.get)
    vocabulary = GrammarVocabulary.of(tokenizer, tokenizer.vocab_size)
    guidance = guidance_tokenizer(vocabulary, lambda piece: tokenizer.encode(piece, allow_special=False))
    matcher = llguidance.LLMatcher(guidance, guidance_text(grammar), log_level=0, limits=parser_limits())
    assert not matcher.is_error(), matcher.get_error()
    token_ids = tokenizer.encode(text, allow_special=True)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


def check(form: AnswerFormat, text: str, *, names: list[str] | None = None, several: bool = True, opened: bool = False):
    tokenizer = byte_tokenizer(*(SPECIAL if form.tools is ToolFormat.MISTRAL else ()))
    tools = [tool for tool in (SEARCH, NOW) if names is None or tool["name"] in names]
    return accepts(
        tokenizer, lambda special: form.calls_grammar(tools, several=several, opened=opened, special=special), text
    )


TEXTS = {
    ToolFormat.HERMES: '<tool_call>\n{"name": "search", "arguments": {"q": "a}\\"", "n": 3}}\n</tool_call>',
    ToolFormat.LLAMA3: '{"name": "search", "parameters": {"q": "a}\\"", "n": 3}}',
    ToolFormat.MISTRAL: '[TOOL_CALLS]search[ARGS]{"q": "a}\\"", "n": 3}',
    ToolFormat.JSON: '{"name": "search", "arguments": {"q": "a}\\"", "n": 3}}',
}
BETWEEN = {ToolFormat.HERMES: "\n", ToolFormat.LLAMA3: "; ", ToolFormat.MISTRAL: "", ToolFormat.JSON: "\n"}


@pytest.mark.parametrize("tool_format", TEXTS)
def test_calls_are_allowed_and_read(tool_format: ToolFormat) -> None:
    form, text = AnswerFormat(tool_format), TEXTS[tool_format]
    both = text + BETWEEN[tool_format] + text.replace("search", "now").replace('{"q": "a}\\"", "n": 3}', "{}")
    for several in (True, False):
        assert check(form, text, several=several)
        assert check(form, both, several=several) == several
    assert not check(form, text, names=["now"])
    assert not check(form, text.replace("3", '"3"'))
    assert not check(form, "I would search. " + text)
    assert not check(form, text[:-1])
    parsed = Parsed()
    parser = form.tool_parser(CallNumbers(str), ["search", "now"])
    assert parser is not None
    parsed.take([*parser.push(both), *parser.finish()])
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == [
        ("search", {"q": 'a}"', "n": 3}),
        ("now", {}),
    ]


def test_mistral_without_the_token_of_arguments_writes_a_list() -> None:
    tokenizer = byte_tokenizer("[TOOL_CALLS]")
    text = '[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]'
    form = AnswerFormat(ToolFormat.MISTRAL)
    assert accepts(
        tokenizer, lambda special: form.calls_grammar([NOW], several=True, opened=False, special=special), text
    )


@pytest.mark.parametrize(
    ("tool_format", "reasoning"),
    [(ToolFormat.HERMES, ReasoningFormat.THINK), (ToolFormat.MISTRAL, ReasoningFormat.MISTRAL)],
)
def test_a_model_may_think_first(tool_format: ToolFormat, reasoning: ReasoningFormat) -> None:
    form = AnswerFormat(tool_format, reasoning)
    tags = form.tags
    assert tags is not None
    call = TEXTS[tool_format]
    assert check(form, call)
    assert check(form, f"{tags.open}\nwhy?\n{tags.close}\n\n{call}")
    assert check(form, f"why?\n{tags.close}\n\n{call}", opened=True)
    assert not check(form, call, opened=True)
    assert not check(form, f"{tags.open}why?{tags.close}I think not")
