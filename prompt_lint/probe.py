"""Checks a chat template by itself: under two clocks, with thinking and tools or without, prompts must only grow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .divergence import common_length
from .errors import UnusableInput
from .findings import Cost, Finding, Location, Severity
from .rendering import ChatTemplate, load_template
from .request import Json
from .rules.catalogue import CATALOGUE

_CLOCKS = (1_772_600_000.0, 1_772_694_061.0)  # two days, two times of day
_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "find_route",
        "description": "Finds a route by its number.",
        "parameters": {"type": "object", "properties": {"route": {"type": "string"}}, "required": ["route"]},
    },
}
_CALL: Json = {"id": "call_0001a", "type": "function", "function": {"name": "find_route", "arguments": {"route": "7"}}}


@dataclass(frozen=True, slots=True)
class _Variant:
    name: str
    extra: Json
    tools: bool


_VARIANTS = (
    _Variant("plain", {}, False),
    _Variant("thinking on", {"enable_thinking": True}, False),
    _Variant("thinking off", {"enable_thinking": False}, False),
    _Variant("with tools", {}, True),
)


def probe_template(path: Path) -> list[Finding]:
    """What a template does that a prefix cache does not survive. Raises: UnusableInput when it cannot be read."""
    template = load_template(path)
    found: dict[tuple[str, str], Finding] = {}
    rendered = 0
    for variant in _VARIANTS:
        try:
            for finding in _probe(template, variant):
                found.setdefault((finding.rule, finding.message), finding)
            rendered += 1
        except UnusableInput:
            continue  # a template may refuse tools or thinking; it must not refuse everything
    if not rendered:
        raise UnusableInput(str(path), "the template refuses every synthetic conversation")
    if not template.source.strip():
        raise UnusableInput(str(path), "the template is empty")
    return list(found.values())


def _probe(template: ChatTemplate, variant: _Variant) -> Iterator[Finding]:
    turns = _turns(variant.tools)
    yield from _clock(template, variant, turns)
    yield from _double_bos(template, variant, turns)
    previous: str | None = None
    for end in _request_ends(turns):
        body = _body(turns[:end], variant)
        prompt = template.render(body, generation_prompt=True, **variant.extra)
        plain = template.render(body, generation_prompt=False, **variant.extra)
        yield from _generation_prompt(template, variant, turns, end, prompt, plain)
        if previous is not None and not prompt.startswith(previous):
            yield from _rewritten(template, variant, previous, prompt, turns, end)
        previous = plain


def _turns(tools: bool) -> list[Json]:
    calls: list[Json] = []
    if tools:
        calls = [
            {"role": "assistant", "content": "", "tool_calls": [_CALL], "reasoning_content": "Route 7 needs a look."},
            {"role": "tool", "tool_call_id": _CALL["id"], "name": "find_route", "content": "09:00"},
        ]
    return [
        {"role": "system", "content": "You are a travel desk."},
        {"role": "user", "content": "When does route 7 leave?"},
        *calls,
        {"role": "assistant", "content": "At nine.", "reasoning_content": "The table says nine."},
        {"role": "user", "content": "And route 9?"},
        {"role": "assistant", "content": "At noon.\n", "reasoning_content": "The table says noon."},
        {"role": "user", "content": "Thanks."},
    ]


def _request_ends(turns: list[Json]) -> list[int]:
    """Where a client would ask: after a user message or a tool result."""
    return [i + 1 for i, turn in enumerate(turns) if turn["role"] in ("user", "tool")]


def _body(messages: list[Json], variant: _Variant) -> Json:
    return {"messages": messages, **({"tools": [_TOOL]} if variant.tools else {})}


def _finding(
    template: ChatTemplate, rule: str, severity: Severity, message: str, char: int | None, lost: int = 0
) -> Finding:
    info = CATALOGUE[rule]
    location = Location(template.file, path="rendered", char=char, request=0)
    return Finding(
        rule, info.name, severity, message, location, info.fix, cost=Cost(lost // 4), scope="template", cause=rule
    )


def _clock(template: ChatTemplate, variant: _Variant, turns: list[Json]) -> Iterator[Finding]:
    texts = [
        template.render(_body(turns[:2], variant), generation_prompt=True, clock=c, **variant.extra) for c in _CLOCKS
    ]
    if texts[0] != texts[1]:
        char = common_length(texts[0], texts[1])
        yield _finding(
            template, "PL109", Severity.WARNING, "the template prints a clock value", char, len(texts[0]) - char
        )


def _double_bos(template: ChatTemplate, variant: _Variant, turns: list[Json]) -> Iterator[Finding]:
    text = template.render(_body(turns[:2], variant), generation_prompt=True, **variant.extra)
    if text.startswith("<s><s>"):
        yield _finding(template, "PL705", Severity.ERROR, "the template prints the start token twice", 3)
    elif text.startswith("<s>"):
        message = "the template prints the start token: tokenise its output with add_special_tokens=False"
        yield _finding(template, "PL705", Severity.INFO, message, 0)


def _generation_prompt(
    template: ChatTemplate, variant: _Variant, turns: list[Json], end: int, prompt: str, plain: str
) -> Iterator[Finding]:
    """What stands before the answer must stand there in history too."""
    if end >= len(turns) or turns[end]["role"] != "assistant" or not prompt.startswith(plain):
        return
    answered = template.render(_body(turns[: end + 1], variant), generation_prompt=False, **variant.extra)
    if not answered.startswith(prompt) and answered.startswith(plain):
        char = common_length(answered, prompt)
        if char > len(plain):
            text = prompt[char:][:24]
            message = f"the generation prompt ends with {text!r}, which history does not repeat ({variant.name})"
            yield _finding(template, "PL702", Severity.WARNING, message, char, len(prompt) - char)


def _rewritten(
    template: ChatTemplate, variant: _Variant, previous: str, prompt: str, turns: list[Json], end: int
) -> Iterator[Finding]:
    char = common_length(previous, prompt)
    if variant.tools and _grows_without_tools(template, variant, turns, end):
        message = "the template prints the tools at another place when a turn is added"
        yield _finding(template, "PL703", Severity.ERROR, message, char, len(previous) - char)
        return
    message = f"an old turn is printed differently once a turn is added ({variant.name})"
    yield _finding(template, "PL701", Severity.WARNING, message, char, len(previous) - char)


def _grows_without_tools(template: ChatTemplate, variant: _Variant, turns: list[Json], end: int) -> bool:
    earlier = [e for e in _request_ends(turns) if e < end]
    texts: list[Any] = [
        template.render(_body(turns[:e], variant), generation_prompt=False, with_tools=False, **variant.extra)
        for e in (earlier[-1], end)
    ]
    return bool(texts[1].startswith(texts[0]))
