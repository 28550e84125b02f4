"""Grammars of answers that a model thinks about first: they hold from where its reasoning ends."""

from __future__ import annotations

import json

from ..engine.grammar import Grammar, GrammarKind
from .grammar_config import WHITESPACE
from .tool_calls.grammar import SpecialToken, Thought, thought_part, thought_rules


def after_thought(grammar: Grammar, thought: Thought, special: SpecialToken) -> Grammar:
    """``grammar``, with reasoning before it: there must be some where the prompt has begun it, and may be else.

    Grammars in Lark or GBNF stay as they are: they can say so themselves. ``grammar`` was checked.
    """
    answer = _answer(grammar)
    if answer is None:
        return grammar
    rules = [
        f"start: {thought_part(thought, special)}answer",
        f"answer: {answer}",
        *thought_rules(thought.tags, special),
    ]
    return Grammar(GrammarKind.LARK, "\n".join(rules))


def _answer(grammar: Grammar) -> str | None:
    """The body of a rule."""
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return _json({"type": "object"})
        case GrammarKind.JSON_SCHEMA:
            return _json(json.loads(grammar.text))
        case GrammarKind.CHOICE:
            return " | ".join(json.dumps(choice) for choice in json.loads(grammar.text))
        case GrammarKind.REGEX:
            from llguidance import regex_to_lark  # the front needs the package for this alone

            return f"/{regex_to_lark(grammar.text, 'dws')}/"
        case _:
            return None


def _json(schema: dict[str, object]) -> str:
    own = schema.get("x-guidance")
    options = own if isinstance(own, dict) else {}
    if "whitespace_flexible" not in options:
        options = {"whitespace_pattern": WHITESPACE, **options}
    return "%json " + json.dumps({**schema, "x-guidance": options})
