"""What follows a conversation: only new messages are written, in the styles of four families of templates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessile.server.text.chat_template import CHATML, ChatTemplate, LogEnd, TemplateTokens
from sessile.server.text.tokenizer import Tokenizer
from sessile.sessions.errors import RequestError

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy

FOLDER = Path(__file__).parent / "templates"
END = {"llama3_style": "<|eot_id|>", "mistral_style": "</s>"}
STYLES = ["chatml", "chatml_default_system", "llama3_style", "qwen3_style", "mistral_style"]
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}]
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
Message = dict[str, Any]
Make = Callable[[str], ChatTemplate]


def end_of(style: str) -> str:
    return END.get(style, "<|im_end|>")


@pytest.fixture
def make() -> Make:
    def make(style: str) -> ChatTemplate:
        source = CHATML if style == "chatml" else (FOLDER / f"{style}.jinja").read_text()
        end = end_of(style)
        special = ("<|im_start|>", "<|begin_of_text|>", "<s>", end)
        tokens = TemplateTokens({"bos_token": "<s>", "eos_token": end}, special, ("<|endoftext|>", end))
        return ChatTemplate(source, tokens, clock=lambda: datetime(2026, 3, 1))

    return make


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def tool(text: str) -> Message:
    return {"role": "tool", "content": text, "tool_call_id": "abcdefghi", "name": "look"}


class Log:
    """A session's text as its tokens would decode: what was rendered, and what the model sampled."""

    def __init__(self, template: ChatTemplate, end: str, tools: list[Message] | None = None) -> None:
        self.template, self.end, self.tools = template, end, tools or []
        self.text = ""
        self.messages: list[Message] = []
        self.log_end = LogEnd.RENDERED

    def ask(self, *new: Message, generate: bool = True, **variables: Any) -> str:
        """Append messages; returns what was added."""
        added = self.template.render_continuation(
            self.messages, new, self.tools, log_end=self.log_end, add_generation_prompt=generate, **variables
        ).text
        self.text += added
        self.messages += new
        self.log_end = LogEnd.RENDERED
        return added

    def answer(self, sampled: str, *, ended: bool = True, **message: Any) -> None:
        self.text += sampled + (self.end if ended else "")
        self.messages.append(assistant(sampled, **message))
        self.log_end = LogEnd.END_OF_TURN if ended else LogEnd.OPEN

    def rendered(self, **variables: Any) -> str:
        return self.template.render(self.messages, self.tools, **variables).text


def sampled(style: str, text: str) -> str:
    """As the model of this style would say it: Mistral's begin with a space."""
    return f" {text}" if style == "mistral_style" else text


@pytest.mark.parametrize("with_system", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_plain_conversations_read_as_if_rendered_whole(make: Make, style: str, with_system: bool) -> None:
    log = Log(make(style), end_of(style))
    system = [SYSTEM] if with_system and style != "mistral_style" else []  # Mistral's wanders to the last message
    log.ask(*system, user("one"))
    for turn in ("two", "three"):
        log.answer(sampled(style, f"answer to {turn}"))
        log.ask(user(turn))
    assert log.text == log.rendered()


@pytest.mark.parametrize("style", STYLES)
def test_a_cut_off_answer_is_closed(make: Make, style: str) -> None:
    log = Log(make(style), end_of(style))
    log.ask(user("one"))
    log.answer(sampled(style, "cut o"), ended=False)
    log.ask(user("two"))
    assert log.text == log.rendered()


@pytest.mark.parametrize("style", STYLES)
def test_an_answer_may_end_with_another_end_token(make: Make, style: str) -> None:
    template = make(style)
    log = Log(template, "<|endoftext|>")
    log.ask(user("one"))
    log.answer("done")
    before = log.text
    log.ask(user("two"))
    assert log.text.startswith(before)
    assert not log.text.removeprefix(before).startswith(end_of(style))


@pytest.mark.parametrize("style", ["chatml", "chatml_default_system", "llama3_style", "qwen3_style"])
def test_messages_appended_without_generating_read_the_same(make: Make, style: str) -> None:
    log = Log(make(style), end_of(style))
    log.ask(SYSTEM, user("one"), generate=False)
    log.ask(user("two"), generate=False)
    log.ask(user("three"))
    assert log.text == log.rendered()


@pytest.mark.parametrize("style", ["chatml", "qwen3_style"])
def test_a_generation_prompt_alone(make: Make, style: str) -> None:
    log = Log(make(style), end_of(style))
    log.ask(user("one"), generate=False)
    assert log.ask() == "<|im_start|>assistant\n"
    assert log.text == log.rendered()


@pytest.mark.parametrize("style", STYLES)
def test_what_stands_at_the_beginning_is_written_once(make: Make, style: str) -> None:
    log = Log(make(style), end_of(style), [] if style.startswith("chatml") else TOOLS)
    log.ask(SYSTEM, user("one"))
    log.answer("calling", tool_calls=[CALL])
    added = log.ask(tool("found")) if not style.startswith("chatml") else log.ask(user("found"))
    for beginning in ("Be brief.", "Looks.", "Today:", "default assistant", "<s>"):
        assert beginning not in added
    assert "found" in added


def test_qwen_tool_results_follow_the_sampled_call(make: Make) -> None:
    log = Log(make("qwen3_style"), "<|im_end|>", TOOLS)
    log.ask(SYSTEM, user("look"))
    call = '<think>\nhm\n</think>\n\n\n<tool_call>\n{"name":"look","arguments":{"x":1}}\n</tool_call>'
    log.answer(call, tool_calls=[CALL])
    added = log.ask(tool("a tree"), tool("a bush"))
    assert added == (
        "\n<|im_start|>user\n<tool_response>\na tree\n</tool_response>\n<tool_response>\na bush\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    assert call in log.text  # the spacing that was sampled, not the template's


def test_qwen_would_drop_old_reasoning_and_the_log_keeps_it(make: Make) -> None:
    log = Log(make("qwen3_style"), "<|im_end|>")
    log.ask(user("one"))
    log.answer("<think>\nlong thoughts\n</think>\n\nshort")
    before = log.text
    log.ask(user("two"))
    assert log.text == before + "\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"
    assert "long thoughts" not in log.rendered()


def test_thinking_can_be_switched_off_for_a_turn(make: Make) -> None:
    log = Log(make("qwen3_style"), "<|im_end|>")
    log.ask(user("one"), enable_thinking=False)
    log.answer("short")
    assert log.ask(user("two")).endswith("<|im_start|>assistant\n")
    log.answer("short")
    assert log.ask(user("three"), enable_thinking=False).endswith("<think>\n\n</think>\n\n")


def test_llama_tools_stay_in_the_first_message(make: Make) -> None:
    log = Log(make("llama3_style"), "<|eot_id|>", TOOLS)
    log.ask(SYSTEM, user("look"))
    assert log.text.count("Functions:") == 1
    log.answer('{"name": "look", "parameters": {"x": 1}}', tool_calls=[CALL])
    added = log.ask(tool("a tree"))
    assert added == (
        "<|start_header_id|>ipython<|end_header_id|>\n\na tree<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert log.text == log.rendered()


def test_mistral_results_then_a_new_question(make: Make) -> None:
    log = Log(make("mistral_style"), "</s>", TOOLS)
    log.ask(user("look"))
    log.answer('[TOOL_CALLS] [{"name": "look"}]', tool_calls=[CALL])
    assert log.ask(tool("a tree")) == '[TOOL_RESULTS] {"content": a tree}[/TOOL_RESULTS]'
    log.answer(" a tree it is")
    # This template announces tools with the last question; so does the continuation, and the past stays as it was.
    assert log.ask(user("again")).endswith("[INST] again[/INST]")


def test_after_a_tool_message_that_was_only_appended(make: Make) -> None:
    log = Log(make("qwen3_style"), "<|im_end|>", TOOLS)
    log.ask(user("look"))
    log.answer("calling", tool_calls=[CALL])
    log.ask(tool("a tree"), generate=False)
    assert log.ask(user("and?")) == "<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"


def test_without_a_past_it_is_a_rendering(make: Make) -> None:
    template = make("chatml")
    first = template.render_continuation([], [user("one")], log_end=LogEnd.RENDERED)
    assert first == template.render([user("one")])


def test_messages_that_the_template_refuses_are_refused(make: Make) -> None:
    template = make("mistral_style")
    with pytest.raises(RequestError, match="alternate"):
        template.render_continuation([user("one")], [user("two")], log_end=LogEnd.RENDERED)


def test_a_template_that_cannot_be_continued_says_so() -> None:
    template = ChatTemplate("{{ messages | length }}")
    with pytest.raises(RequestError, match="cannot be continued"):
        template.render_continuation([user("one")], [user("two")], log_end=LogEnd.RENDERED)


@RELAXED
@given(
    answers=st.lists(st.tuples(st.text("ab \n<|>_imend", max_size=8), st.booleans()), min_size=1, max_size=4),
    question=st.sampled_from(["hi", "<|im_end|>", "  spaced  ", "héllo 🙂", ""]),
)
def test_tokens_of_the_past_never_change(byte_level: Tokenizer, answers: list[tuple[str, bool]], question: str) -> None:
    template = ChatTemplate(tokens=TemplateTokens({}, byte_level.special_texts, ("<|im_end|>",)))
    end = byte_level.token_id("<|im_end|>")
    assert end is not None
    log = byte_level.encode_prompt(template.render([user(question)]))
    messages = [user(question)]
    for text, ended in answers:
        log += byte_level.encode(text, allow_special=False) + ([end] if ended else [])
        messages.append(assistant(text))
        log_end = LogEnd.END_OF_TURN if ended else LogEnd.OPEN
        log += byte_level.encode_prompt(template.render_continuation(messages, [user(question)], log_end=log_end))
        messages.append(user(question))
    assert byte_level.decode(log, skip_special=False) == template.render(messages).text
    assert log.count(end) == len(messages)
