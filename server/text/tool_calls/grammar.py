"""Grammars of answers that must be calls: the model's own form of them, with the arguments' schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...engine.grammar import Grammar, GrammarKind
from ..reasoning import ReasoningTags

_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as templates write JSON
SpecialToken = Callable[[str], int | None]
"""The id of a special token with this text; None where the text is written like any other."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How calls are written: around all of them, between them, and each of them.

    ``before`` and ``after`` stand around a call's arguments; ``{name}`` in them is its name as JSON, ``{bare}`` as is.
    ``marks`` are the texts in them that may be special tokens.
    """

    before: str
    after: str = ""
    between: str = ""
    opening: str = ""
    closing: str = ""
    marks: tuple[str, ...] = ()

    def written(self, name: str, arguments: str) -> str:
        """One call as text."""
        names = {"name": json.dumps(name, ensure_ascii=False), "bare": name}
        return self.before.format(**names) + arguments + self.after.format(**names)


HERMES = CallForm(
    '<tool_call>\n{{"name": {name}, "arguments": ', "}}\n</tool_call>", "\n", marks=("<tool_call>", "</tool_call>")
)
LLAMA3 = CallForm('{{"name": {name}, "parameters": ', "}}", "; ")
MISTRAL_LIST = CallForm('{{"name": {name}, "arguments": ', "}}", ", ", "[TOOL_CALLS] [", "]", marks=("[TOOL_CALLS]",))
MISTRAL_NAMED = CallForm("[TOOL_CALLS]{bare}[ARGS]", marks=("[TOOL_CALLS]", "[ARGS]"))
PLAIN_JSON = CallForm('{{"name": {name}, "arguments": ', "}}", "\n")


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning that may come before the calls. ``opened``: the prompt has begun it, so it must be ended."""

    tags: ReasoningTags
    opened: bool


def calls_grammar(
    form: CallForm,
    functions: Sequence[dict[str, Any]],
    *,
    several: bool,
    thought: Thought | None,
    special: SpecialToken,
) -> Grammar:
    """One call of one of ``functions`` (OpenAI's: name and parameters), or with ``several`` one or more."""
    rules = [f"start: {thought_part(thought, special)}{_literal(form.opening, form, special)} calls"]
    rules[0] += f" {_literal(form.closing, form, special)}"
    rules.append(f"calls: call ({_literal(form.between, form, special)} call)*" if several else "calls: call")
    rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(functions))))
    for index, function in enumerate(functions):
        names = {"name": json.dumps(function["name"], ensure_ascii=False), "bare": function["name"]}
        before = _literal(form.before.format(**names), form, special)
        after = _literal(form.after.format(**names), form, special)
        rules.append(f"call_{index}: {before} arguments_{index} {after}")
        rules.append(f"arguments_{index}: %json {json.dumps(_schema(function))}")
    if thought is not None:
        rules += thought_rules(thought.tags, special)
    return Grammar(GrammarKind.LARK, "\n".join(rules))


def arguments_schema(function: dict[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments, which are an object whatever it says."""
    parameters = function.get("parameters")
    return {**(parameters if isinstance(parameters, dict) else {}), "type": "object"}


def _schema(function: dict[str, Any]) -> dict[str, Any]:
    return {**arguments_schema(function), "x-guidance": _STYLE}


def thought_part(thought: Thought | None, special: SpecialToken) -> str:
    """What stands before an answer that may be thought about; needs ``thought_rules``."""
    if thought is None:
        return ""
    if thought.opened:
        return "thought "
    return f"({_mark(thought.tags.open, special)} thought)? "


def thought_rules(tags: ReasoningTags, special: SpecialToken) -> list[str]:
    """The rule ``thought``: anything up to the closing tag, and the white space behind it."""
    close = special(tags.close)
    if close is not None:
        return [f"thought: /(.|\\n)*/ <[{close}]> /[\\n ]*/"]
    return ["thought: thought_text /[\\n ]*/", f"thought_text[stop={json.dumps(tags.close)}]: /(.|\\n)*/"]


def _literal(text: str, form: CallForm, special: SpecialToken) -> str:
    """``text`` as terminals, its marks as special tokens where they are."""
    for mark in form.marks:
        before, found, after = text.partition(mark)
        if found:
            parts = (_literal(before, form, special), _mark(mark, special), _literal(after, form, special))
            return " ".join(part for part in parts if part)
    return json.dumps(text, ensure_ascii=False) if text else ""


def _mark(text: str, special: SpecialToken) -> str:
    token_id = special(text)
    return json.dumps(text) if token_id is None else f"<[{token_id}]>"
