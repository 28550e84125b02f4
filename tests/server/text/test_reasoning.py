"""Reasoning parted from answers, and the choice of formats."""

from __future__ import annotations

from pathlib import Path

import pytest
from call_text import Parsed
from hypothesis import given
from hypothesis import strategies as st

from sessile.server.text.answer_format import ReasoningFormat, TextConfig, ToolFormat, choose_format
from sessile.server.text.answer_parser import AnswerParser
from sessile.server.text.chat_template import CHATML
from sessile.server.text.reasoning import THINK, ReasoningSplitter, opens_reasoning
from sessile.server.text.tool_calls import CallNumbers
from sessile.server.text.tool_calls.hermes import HermesParser

TEMPLATES = Path(__file__).parent / "templates"


def split(text: str, cuts: list[int], *, opened: bool = False) -> tuple[str, str]:
    parser = AnswerParser(ReasoningSplitter(THINK, opened=opened), None)
    parsed, start = Parsed(), 0
    for end in [*sorted(cut % (len(text) + 1) for cut in cuts), len(text)]:
        parsed.take(parser.push(text[start:end]))
        start = end
    parsed.take(parser.finish())
    return parsed.reasoning, parsed.text


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>\nwhy\n</think>\n\nbecause", False, ("why", "because")),
        ("\n<think></think>because ", False, ("", "because ")),
        ("why\n</think>\n\nbecause", True, ("why", "because")),
        ("<think>\nwhy</think>x", True, ("why", "x")),
        ("<think>cut off ", False, ("cut off", "")),
        ("say <think> and </think>", False, ("", "say <think> and </think>")),
        ("<thin", False, ("", "<thin")),
        (" plain", False, ("", " plain")),
        ("a </think b < /think> c</think> d</think>", True, ("a </think b < /think> c", "d</think>")),
    ],
)
@given(cuts=st.lists(st.integers(0, 100), max_size=12))
def test_reasoning_is_parted_however_it_is_cut(
    text: str, opened: bool, expected: tuple[str, str], cuts: list[int]
) -> None:
    reasoning, answer = split(text, cuts, opened=opened)
    assert (reasoning.rstrip(), answer) == expected


def test_calls_behind_reasoning() -> None:
    parser = AnswerParser(ReasoningSplitter(THINK, opened=False), HermesParser(CallNumbers(str)))
    parsed = Parsed()
    for character in '<think>a <tool_call>?</think>\n<tool_call>{"name": "f"}</tool_call>':
        parsed.take(parser.push(character))
    parsed.take(parser.finish())
    assert (parsed.reasoning, parsed.text, [call.name for call in parsed.calls]) == ("a <tool_call>?", "", ["f"])


def test_prompts_that_open_reasoning() -> None:
    assert opens_reasoning("<|im_start|>assistant\n<think>\n", THINK)
    assert not opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n", THINK)


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("qwen3_style.jinja", ToolFormat.HERMES, ReasoningFormat.THINK),
        ("llama3_style.jinja", ToolFormat.LLAMA3, ReasoningFormat.NONE),
        ("mistral_style.jinja", ToolFormat.MISTRAL, ReasoningFormat.NONE),
        (None, ToolFormat.JSON, ReasoningFormat.NONE),
    ],
)
def test_formats_follow_the_template(template: str | None, tools: ToolFormat, reasoning: ReasoningFormat) -> None:
    source = CHATML if template is None else (TEMPLATES / template).read_text()
    chosen = choose_format(source, lambda _: False, TextConfig())
    assert (chosen.tools, chosen.reasoning) == (tools, reasoning)


def test_formats_follow_the_vocabulary_and_the_configuration() -> None:
    chosen = choose_format(CHATML, lambda token: token in ("<tool_call>", "<think>"), TextConfig())
    assert (chosen.tools, chosen.reasoning) == (ToolFormat.HERMES, ReasoningFormat.THINK)
    config = TextConfig(tool_parser=ToolFormat.NONE, reasoning_parser=ReasoningFormat.MISTRAL)
    chosen = choose_format(CHATML, lambda _: True, config)
    assert (chosen.tools, chosen.reasoning) == (ToolFormat.NONE, ReasoningFormat.MISTRAL)
    assert chosen.because == "tools: as configured; reasoning: as configured"
