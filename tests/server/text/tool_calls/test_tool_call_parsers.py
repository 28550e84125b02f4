"""Parsers of tool calls: what is rendered is found again, however the text is cut; nothing is ever lost."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import call_text
import pytest
from call_text import Parsed, Render
from hypothesis import given, settings
from hypothesis import strategies as st

from sessile.server.text.answer_format import AnswerFormat, ToolFormat
from sessile.server.text.tool_calls import CallNumbers, ToolCallArguments, ToolCallParser, ToolCallStarted
from sessile.sessions.messages import ToolCall

NAMES = ("get_weather", "search", "a.b-c_1")
FORMS: tuple[tuple[ToolFormat, Render], ...] = (
    (ToolFormat.HERMES, call_text.hermes),
    (ToolFormat.LLAMA3, call_text.llama3),
    (ToolFormat.LLAMA3, call_text.llama3_tagged),
    (ToolFormat.MISTRAL, call_text.mistral_list),
    (ToolFormat.MISTRAL, call_text.mistral_named),
    (ToolFormat.MISTRAL, call_text.mistral_with_ids),
    (ToolFormat.JSON, call_text.json_list),
    (ToolFormat.JSON, call_text.json_lines),
    (ToolFormat.JSON, call_text.json_fenced),
)
FORM_IDS = [render.__name__ for _, render in FORMS]


def parser(tool_format: ToolFormat) -> ToolCallParser:
    made = AnswerFormat(tool_format).tool_parser(CallNumbers(lambda index: f"call_{index}"), NAMES)
    assert made is not None
    return made


def parse(tool_format: ToolFormat, pieces: Sequence[str]) -> Parsed:
    parsed, reading = Parsed(), parser(tool_format)
    for piece in pieces:
        parsed.take(reading.push(piece))
    parsed.take(reading.finish())
    return parsed


def cut(text: str, seed: int) -> list[str]:
    """Pieces of 1 to 7 characters."""
    chance, pieces = random.Random(seed), []
    while text:
        length = chance.randint(1, 7)
        pieces.append(text[:length])
        text = text[length:]
    return pieces


CHARACTERS = [*'ab{}[]:,"\\\n\t é🙂<>/', "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "```", "\u2028", "\x7f"]


def some_text(chance: random.Random) -> str:
    return "".join(chance.choices(CHARACTERS, k=chance.randint(0, 8)))


def some_value(chance: random.Random, depth: int = 0) -> Any:
    match chance.randint(0, 7 if depth < 3 else 5):
        case 0:
            return chance.choice([None, True, False])
        case 1:
            return chance.randint(-(2**60), 2**60)
        case 2:
            return chance.choice([0.5, -1e300, 1e-7, 3.0])
        case 6:
            return [some_value(chance, depth + 1) for _ in range(chance.randint(0, 3))]
        case 7:
            return {some_text(chance): some_value(chance, depth + 1) for _ in range(chance.randint(0, 3))}
        case _:
            return some_text(chance)


def some_call(chance: random.Random) -> ToolCall:
    value = {some_text(chance): some_value(chance) for _ in range(chance.randint(0, 4))}
    written = json.dumps(value, ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, None, 2]))
    return ToolCall(id="", name=chance.choice(NAMES), arguments=written)


@pytest.mark.parametrize(("tool_format", "render"), FORMS, ids=FORM_IDS)
def test_a_hundred_calls_round_trip_in_pieces(tool_format: ToolFormat, render: Render) -> None:
    chance, done = random.Random(7), 0
    while done < 100:
        calls = [some_call(chance) for _ in range(chance.randint(1, 3))]
        before = chance.choice(["", "So: "])
        text = (f"{before}\n" if before else "") + render(calls)
        found = parse(tool_format, cut(text, done))
        expected = [(f"call_{index}", call.name, call.arguments) for index, call in enumerate(calls)]
        assert [(call.id, call.name, call.arguments) for call in found.calls] == expected
        assert (found.text, found.malformed) == (before.strip(), [])
        done += len(calls)


SCRAPS = (
    *(
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
        "```json",
        "```",
        "\n",
        " ",
    ),
    *('{"name": "search", "arguments": {"q": "}{"}}', '{"name": "search"', '"parameters": {}', "{", "}", "[", "]", ","),
    *('"', "\\", "search", "x", "é🙂", ";", '{"a": 1}', '{"name": "nobody", "arguments": {}}'),
)


@pytest.mark.parametrize("tool_format", [form for form in ToolFormat if form not in (ToolFormat.AUTO, ToolFormat.NONE)])
@settings(max_examples=60, deadline=None)
@given(scraps=st.lists(st.sampled_from(SCRAPS), max_size=12), seed=st.integers(0, 2**20))
def test_pieces_do_not_matter_and_nothing_is_lost(tool_format: ToolFormat, scraps: list[str], seed: int) -> None:
    text = "".join(scraps)
    whole, pieces = parse(tool_format, [text]), parse(tool_format, cut(text, seed))
    assert pieces == whole
    for call in whole.calls:
        assert isinstance(json.loads(call.arguments), dict)
        assert json.dumps(call.name)[1:-1] in text
    if not whole.calls:
        assert "".join(whole.text.split()) == "".join(text.split())


@pytest.mark.parametrize(("tool_format", "render"), FORMS, ids=FORM_IDS)
def test_arguments_are_streamed(tool_format: ToolFormat, render: Render) -> None:
    call = ToolCall(id="", name="search", arguments=json.dumps({"q": "a long question " * 20}))
    reading = parser(tool_format)
    told = [piece for character in render([call]) for piece in reading.push(character)]
    fragments = [piece for piece in told if isinstance(piece, ToolCallArguments)]
    assert isinstance(told[0], ToolCallStarted)
    assert len(fragments) > 300


def test_text_around_calls() -> None:
    text = 'Let me see.\n\n<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>\nAnd <b>more</b> text.'
    found = parse(ToolFormat.HERMES, cut(text, 1))
    assert found.text == "Let me see.And <b>more</b> text."
    assert [call.name for call in found.calls] == ["search"]


@pytest.mark.parametrize(
    ("tool_format", "text", "reason"),
    [
        (ToolFormat.HERMES, '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>', "is not a JSON value"),
        (ToolFormat.HERMES, '<tool_call>{"name": "f", "arguments": {"a": "b', "ended inside the call"),
        (ToolFormat.HERMES, "<tool_call>\nget_weather(city)\n</tool_call>", "'g' where {"),
        (ToolFormat.HERMES, '<tool_call>{"arguments": {}}</tool_call>', "the call has no name"),
        (ToolFormat.HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "not an object"),
        (ToolFormat.HERMES, '<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>', "not an object"),
        (ToolFormat.HERMES, '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 70, "nested more than 64 deep"),
        (ToolFormat.MISTRAL, "[TOOL_CALLS]f[ARGS]nothing", "is not a JSON value"),
        (ToolFormat.MISTRAL, "[TOOL_CALLS]", "ended inside the call"),
        (ToolFormat.LLAMA3, "<|python_tag|>print(1)", "'p' where {"),
        (ToolFormat.JSON, '{"name": "search", "arguments": {"a" 1}}', "'1' where : should be"),
    ],
)
def test_malformed_calls_come_back_as_text_with_a_reason(tool_format: ToolFormat, text: str, reason: str) -> None:
    found = parse(tool_format, cut(text, 3))
    assert found.calls == []
    assert found.text == text
    assert reason in found.malformed[0].reason


def test_a_call_behind_a_malformed_one_is_found() -> None:
    text = '<tool_call>{"name": "f", "arguments": {a}}</tool_call>\n<tool_call>{"name": "g"}</tool_call>'
    found = parse(ToolFormat.HERMES, cut(text, 2))
    assert [(call.name, call.arguments, call.id) for call in found.calls] == [("g", "{}", "call_1")]
    assert found.malformed[0].text == '<tool_call>{"name": "f", "arguments": {a}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "f"}', '{"a": 1}'),
        ('{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}', '{"a": 1}'),
        ('{"id": "x", "name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f"}', "{}"),
    ],
)
def test_other_ways_to_write_a_call(text: str, arguments: str) -> None:
    found = parse(ToolFormat.HERMES, cut(f"<tool_call>{text}</tool_call>", 1))
    assert [(call.name, call.arguments) for call in found.calls] == [("f", arguments)]


@pytest.mark.parametrize(
    "text", ['{"answer": 42}', '{"name": "Ann", "arguments": {}}', "[1, 2]", "[{}]", "```py\nx\n```"]
)
def test_json_that_is_no_call_is_text(text: str) -> None:
    for tool_format in (ToolFormat.JSON, ToolFormat.LLAMA3):
        found = parse(tool_format, cut(text, 1))
        assert (found.text, found.calls, found.malformed) == (text, [], [])
