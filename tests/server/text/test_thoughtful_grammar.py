"""Reasoning before an answer that a grammar binds."""

from __future__ import annotations

import json

import llguidance
import pytest
from byte_text import byte_tokenizer

from sessile.server.engine.grammar import Grammar, GrammarKind
from sessile.server.text.grammar_vocabulary import GrammarVocabulary
from sessile.server.text.guidance import guidance_text, guidance_tokenizer, parser_limits
from sessile.server.text.reasoning import THINK
from sessile.server.text.thoughtful_grammar import after_thought
from sessile.server.text.tool_calls.grammar import Thought

SCHEMA = {"type": "object", "properties": {"a": {"const": "/b/"}}, "required": ["a"], "additionalProperties": False}
ANSWERS = [
    (Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)), '{"a":  "/b/"}', '{"a": 1}'),
    (Grammar(GrammarKind.JSON_OBJECT), '{"x": [1, {}]}', "[1]"),
    (Grammar(GrammarKind.CHOICE, '["yes", "n\\"o"]'), 'n"o', "no"),
    (Grammar(GrammarKind.REGEX, r"\d{2}/[a-c]|x"), "12/b", "12/d"),
]


def accepts(grammar: Grammar, text: str, special: dict[str, int]) -> bool:
    tokenizer = byte_tokenizer(*special)
    vocabulary = GrammarVocabulary.of(tokenizer, tokenizer.vocab_size)
    guidance = guidance_tokenizer(vocabulary, tokenizer.encode_inside)
    matcher = llguidance.LLMatcher(guidance, guidance_text(grammar), log_level=0, limits=parser_limits())
    assert not matcher.is_error(), matcher.get_error()
    token_ids = tokenizer.encode(text, allow_special=True)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize(("grammar", "good", "bad"), ANSWERS, ids=[str(grammar.kind) for grammar, _, _ in ANSWERS])
@pytest.mark.parametrize("tags_are_special", [False, True])
def test_the_answer_is_bound_behind_the_thought(grammar: Grammar, good: str, bad: str, tags_are_special: bool) -> None:
    special = {}
    if tags_are_special:
        tokenizer = byte_tokenizer("<think>", "</think>")
        special = {tag: tokenizer.token_id(tag) or 0 for tag in ("<think>", "</think>")}
    thought = 'I see: {"a": 2} or\n[x]'
    opened = after_thought(grammar, Thought(THINK, opened=True), special.get)
    assert accepts(opened, f"{thought}</think>\n\n{good}", special)
    assert not accepts(opened, good, special)
    assert not accepts(opened, f"{thought}</think>\n\n{bad}", special)
    free = after_thought(grammar, Thought(THINK, opened=False), special.get)
    assert accepts(free, good, special)
    assert accepts(free, f"<think>{thought}</think>{good}", special)
    assert not accepts(free, bad, special)
    assert not accepts(free, f"<think>{thought}</think>{bad}", special)


def test_grammars_that_can_say_it_themselves_are_left_alone() -> None:
    lark = Grammar(GrammarKind.LARK, 'start: "a"')
    assert after_thought(lark, Thought(THINK, opened=True), {}.get) == lark
