"""Turns that call tools and think: typed deltas, the log's messages, ids, and exact replay."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from byte_text import byte_tokenizer
from call_text import Parsed
from manager_bench import GREEDY, Bench, user

from sessile.server.engine.grammar import Grammar, GrammarKind
from sessile.server.engine.messages import FinishReason
from sessile.server.text.answer_format import ReasoningFormat, TextConfig, ToolFormat
from sessile.server.text.tool_calls import MalformedCall
from sessile.sessions.errors import EngineError, RequestError
from sessile.sessions.manager import (
    CompletionRequest,
    GenerateRequest,
    MessagesInput,
    SessionManager,
    StopCause,
    TextDelta,
    ToolResultInput,
    TurnFinished,
)
from sessile.sessions.manager.requests import ToolChoice, ToolChoiceMode
from sessile.sessions.messages import Message, Role, ToolCall

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
}
CALL = '<tool_call>\n{"name": "search", "arguments": {"q": "a",  "n": 1.0}}\n</tool_call>'
ARGUMENTS = '{"q": "a",  "n": 1.0}'
END = 257


def hermes(bench: Bench, **fields: Any) -> None:
    """Make the bench's model one that writes calls as Hermes does."""
    bench.manager.shutdown()
    config = TextConfig(tool_parser=ToolFormat.HERMES, **fields)
    bench.manager = SessionManager(
        bench.store,
        bench.engine,
        bench.tokenizer,
        bench.template,
        clock=bench.clock,
        steady=bench.clock,
        text_config=config,
    )


def says(bench: Bench, text: str) -> list[int]:
    said = [*bench.tokens(text), END]
    bench.engine.will_say(said)
    return said


async def told(events: Any) -> tuple[Parsed, list[int], TurnFinished]:
    """What the deltas say, their tokens, and the end."""
    parsed, token_ids, finished, malformed = Parsed(), [], None, []
    async for event in events:
        match event:
            case TextDelta():
                parsed.text += event.text
                token_ids += event.token_ids
            case MalformedCall():
                malformed.append(event)
            case TurnFinished():
                finished = event
            case _:
                parsed.take([event])
    parsed.malformed = malformed
    assert finished is not None
    return parsed, token_ids, finished


def generate(bench: Bench, session_id: str, text: str | None = "go", **fields: Any) -> Any:
    turn_input = None if text is None else MessagesInput((user(text),))
    fields = {"input": turn_input, "sampling": GREEDY} | fields
    return bench.manager.generate(GenerateRequest(session_id=session_id, **fields))


def complete(bench: Bench, messages: list[Message], **fields: Any) -> Any:
    fields = {"tools": (TOOL,), "sampling": GREEDY} | fields
    return bench.manager.complete(CompletionRequest(prompt=MessagesInput(tuple(messages)), **fields))


async def test_a_call_in_a_session(bench: Bench) -> None:
    hermes(bench)
    session = await bench.open(tools=(TOOL,))
    said = says(bench, "Let me look.\n" + CALL)
    parsed, token_ids, finished = await told(generate(bench, session.session_id))
    (call,) = parsed.calls
    assert (parsed.text, call.name, call.arguments) == ("Let me look.", "search", ARGUMENTS)
    assert token_ids == said
    assert (finished.finish_reason, finished.stop_cause) == (FinishReason.TOOL_CALLS, StopCause.END_OF_TURN)
    assert finished.tool_calls == (call,)
    last = (await bench.log(session.session_id)).parts[-1].entry.messages
    assert last == (Message(role=Role.ASSISTANT, content="Let me look.", tool_calls=(call,)),)
    result = ToolResultInput(call.id, "found", "search")
    await told(generate(bench, session.session_id, None, input=result))
    assert bench.engine.submitted[1].token_ids[: finished.num_tokens] == [*bench.engine.submitted[0].token_ids, *said]


async def test_reasoning_is_kept_apart(bench: Bench) -> None:
    hermes(bench, reasoning_parser=ReasoningFormat.THINK)
    session = await bench.open(tools=(TOOL,))
    says(bench, f"<think>\nwhy\n</think>\n\nso\n{CALL}")
    parsed, _, finished = await told(generate(bench, session.session_id))
    assert (parsed.reasoning, parsed.text, len(parsed.calls)) == ("why", "so", 1)
    assert finished.reasoning_tokens == len(">\nwhy\n</think>")  # from the tag that opens on
    assert (await bench.log(session.session_id)).parts[-1].entry.messages[0].reasoning == "why"


async def test_a_prompt_that_opens_reasoning(bench: Bench) -> None:
    from byte_text import chatml_template

    bench.template = chatml_template(
        "{%- for m in messages -%}{{ m.content }}<|im_end|>{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<think>\n' }}{%- endif -%}"
    )
    bench.restart()
    says(bench, "why</think>because")
    parsed, _, _ = await told(complete(bench, [user("a")], tools=()))
    assert (parsed.reasoning, parsed.text) == ("why", "because")


async def test_without_tools_a_call_is_text(bench: Bench) -> None:
    hermes(bench)
    for fields in ({"tools": ()}, {"tool_choice": ToolChoice(mode=ToolChoiceMode.NONE)}):
        says(bench, CALL)
        parsed, _, finished = await told(complete(bench, [user("a")], **fields))
        assert (parsed.text, parsed.calls, finished.finish_reason) == (CALL, [], FinishReason.STOP)


async def test_a_malformed_call_is_text_with_a_reason(bench: Bench) -> None:
    hermes(bench)
    broken = '<tool_call>{"name": "search", "arguments": {"q": }}</tool_call>'
    says(bench, broken)
    parsed, _, finished = await told(complete(bench, [user("a")]))
    assert (parsed.text, finished.tool_calls, finished.finish_reason) == (broken, (), FinishReason.STOP)
    assert [(note.text, note.index) for note in parsed.malformed] == [(broken, 0)]
    assert "is not a JSON value" in parsed.malformed[0].reason


async def test_one_call_alone(bench: Bench) -> None:
    hermes(bench)
    bench.engine.will_say([*bench.tokens(CALL + "\n" + CALL), END])
    parsed, _, finished = await told(complete(bench, [user("a")], tool_choice=ToolChoice(parallel=False)))
    assert len(parsed.calls) == 1
    assert (finished.finish_reason, finished.stop_cause) == (FinishReason.TOOL_CALLS, StopCause.TOOL_CALL)
    assert finished.usage.completion_tokens == len(CALL)


async def test_ids_are_unique_and_hard_to_guess(bench: Bench) -> None:
    hermes(bench)
    seen: set[str] = set()
    for _ in range(3):
        says(bench, CALL + CALL)
        parsed, _, _ = await told(complete(bench, [user("a")]))
        seen |= {call.id for call in parsed.calls}
    assert len(seen) == 6
    assert all(call_id.startswith("call_") and len(call_id) == 29 for call_id in seen)


async def test_the_same_request_has_the_same_ids(bench: Bench) -> None:
    """Told again, or run again after the engine died in the middle."""
    hermes(bench)
    session = await bench.open(tools=(TOOL,))
    bench.engine.will_say([*bench.tokens(CALL), END], fail_after=60)
    first = Parsed()

    async def read_until_it_dies() -> None:
        async for event in generate(bench, session.session_id, request_id="r"):
            if not isinstance(event, TextDelta):
                first.take([event])

    with pytest.raises(EngineError, match="died"):
        await read_until_it_dies()
    says(bench, "x\n" + CALL)
    runs = [await told(generate(bench, session.session_id, request_id="r")) for _ in range(2)]
    ids = [call.id for parsed, _, _ in runs for call in parsed.calls]
    assert ids == [call.id for call in first.calls] * 2
    assert runs[0][0] == runs[1][0]
    assert runs[1][2].replayed
    assert runs[0][1] == runs[1][1]


@pytest.mark.parametrize("written", ['{"n":1,"q":"a"}', '{\n  "n": 1.0,\n  "q": "\\u0061"\n}', ARGUMENTS])
async def test_mtplx_121_colibri_1576_a_call_sent_back_otherwise_is_replayed_exactly(
    bench: Bench, written: str
) -> None:
    """Clients parse arguments and write them anew: other order, other white space, the same recorded tokens."""
    hermes(bench)
    said = says(bench, CALL)
    parsed, _, one = await told(complete(bench, [user("a")]))
    call = ToolCall(id=parsed.calls[0].id, name="search", arguments=written)
    result = Message(role=Role.TOOL, content="found", tool_call_id=call.id)
    again = [user("a"), Message(role=Role.ASSISTANT, tool_calls=(call,)), result]
    _, _, two = await told(complete(bench, again))
    assert bench.engine.submitted[1].token_ids[: one.num_tokens] == [*bench.engine.submitted[0].token_ids, *said]
    assert two.usage.tokens_by_source.cached >= one.num_tokens - 1


@pytest.mark.parametrize("text", ["", "Let me look.", " Let me look.\n"])
async def test_an_answer_is_known_by_the_ids_of_its_calls(bench: Bench, text: str) -> None:
    """Many clients drop the text beside calls, or trim it."""
    hermes(bench)
    said = says(bench, "Let me look.\n" + CALL)
    parsed, _, one = await told(complete(bench, [user("a")]))
    call = ToolCall(id=parsed.calls[0].id, name="search", arguments='{"n":1,"q":"a"}')
    sent = Message(role=Role.ASSISTANT, content=text, tool_calls=(call,))
    again = [user("a"), sent, Message(role=Role.TOOL, content="found", tool_call_id=call.id)]
    await told(complete(bench, again))
    assert bench.engine.submitted[1].token_ids[: one.num_tokens] == [*bench.engine.submitted[0].token_ids, *said]
    for other in (ToolCall(id=call.id, name="search", arguments='{"q": "b"}'), ToolCall(id="x", name="f")):
        changed = msgspec.structs.replace(sent, tool_calls=(other,))
        await told(complete(bench, [user("a"), changed, again[2]]))
        assert (
            bench.engine.submitted[-1].token_ids[: one.num_tokens]
            != bench.engine.submitted[1].token_ids[: one.num_tokens]
        )


async def test_a_template_without_tools_is_told_of_them(bench: Bench) -> None:
    """The tools stand in the system message, and calls in the text of answers that are rendered anew."""
    hermes(bench)
    call = ToolCall(id="x", name="search", arguments='{"q": "b"}')
    messages = [user("a"), Message(role=Role.ASSISTANT, content="So.", tool_calls=(call,)), user("b")]
    await told(complete(bench, messages))
    shown = bench.shown(bench.engine.submitted[0].token_ids)
    assert shown.startswith("<|im_start|>system\nYou can call these functions:\n" + json.dumps(TOOL["function"]))
    assert 'nothing but\n<tool_call>\n{"name": "name", "arguments": {…}}\n</tool_call><|im_end|>' in shown
    assert 'So.\n<tool_call>\n{"name": "search", "arguments": {"q": "b"}}\n</tool_call><|im_end|>' in shown
    session = await bench.open(tools=(TOOL,), system="s")
    await told(generate(bench, session.session_id))
    await told(generate(bench, session.session_id))
    shown = bench.shown(bench.engine.submitted[-1].token_ids)
    assert shown.startswith("<|im_start|>system\ns\n\nYou can call these functions:")
    assert shown.count("You can call") == 1


async def test_reasoning_goes_on_where_it_was_cut_off(bench: Bench) -> None:
    hermes(bench, reasoning_parser=ReasoningFormat.THINK)
    session = await bench.open()
    bench.engine.will_say(bench.tokens("<think>because"))
    parsed, _, _ = await told(generate(bench, session.session_id))
    assert (parsed.reasoning, parsed.text) == ("because", "")
    says(bench, "it is</think>so")
    parsed, _, _ = await told(generate(bench, session.session_id, None))
    assert (parsed.reasoning, parsed.text) == ("it is", "so")
    says(bench, "<think>again</think>yes")
    parsed, _, _ = await told(generate(bench, session.session_id))
    assert (parsed.reasoning, parsed.text) == ("again", "yes")


async def test_a_choice_that_cannot_be_is_refused(bench: Bench) -> None:
    for fields, field in (
        ({"tools": (), "tool_choice": ToolChoice(mode=ToolChoiceMode.REQUIRED)}, "tool_choice"),
        ({"tool_choice": ToolChoice(mode=ToolChoiceMode.REQUIRED, name="f")}, "tool_choice.name"),
        ({"tool_choice": ToolChoice(name="search")}, "tool_choice.name"),
    ):
        with pytest.raises(RequestError) as bad:
            await told(complete(bench, [user("a")], **fields))
        assert bad.value.field == field


async def test_a_required_call_is_a_grammar(bench: Bench) -> None:
    hermes(bench)
    for choice in (ToolChoice(mode=ToolChoiceMode.REQUIRED), ToolChoice(mode=ToolChoiceMode.REQUIRED, name="search")):
        says(bench, CALL)
        parsed, _, _ = await told(complete(bench, [user("a")], tool_choice=choice))
        assert [call.name for call in parsed.calls] == ["search"]
        grammar = bench.engine.submitted[-1].sampling.grammar
        assert grammar is not None
        assert "<tool_call>" in grammar.text
    session = await bench.open(tools=(TOOL,))
    say = {"tool_choice": choice, "request_id": "r"}
    runs = [await told(generate(bench, session.session_id, **say)) for _ in range(2)]
    assert bench.engine.submitted[-1].sampling.grammar == grammar
    assert (runs[0][1], runs[1][2].replayed) == (runs[1][1], True)


async def test_a_required_call_that_cannot_be_a_grammar(bench: Bench) -> None:
    required = ToolChoice(mode=ToolChoiceMode.REQUIRED)
    bad_tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"not": {}}}}}}
    json_object = msgspec.structs.replace(GREEDY, grammar=Grammar(GrammarKind.JSON_OBJECT))
    for fields, field in (
        ({"tools": (bad_tool,)}, "tools[0].function.parameters"),
        ({"sampling": json_object}, "tool_choice"),
    ):
        with pytest.raises(RequestError) as bad:
            await told(complete(bench, [user("a")], tool_choice=required, **fields))
        assert bad.value.field == field
    bench.manager.shutdown()
    config = TextConfig(tool_parser=ToolFormat.NONE)
    bench.manager = SessionManager(bench.store, bench.engine, bench.tokenizer, bench.template, text_config=config)
    with pytest.raises(RequestError, match="calls are not read"):
        await told(complete(bench, [user("a")], tool_choice=required))


async def test_special_tokens_of_the_format_are_seen(bench: Bench) -> None:
    """Mistral's marks are special tokens: they are read, and never shown."""
    from scripted_engine import ScriptedEngine

    bench.tokenizer = byte_tokenizer("[TOOL_CALLS]", "[ARGS]", "[INST]")
    bench.engine = ScriptedEngine(vocab_size=261)
    bench.restart()
    says(bench, "see [INST]" + '[TOOL_CALLS]search[ARGS]{"q": 1}')
    parsed, _, _ = await told(complete(bench, [user("a")]))
    (call,) = parsed.calls
    assert (parsed.text, call.name, json.loads(call.arguments)) == ("see", "search", {"q": 1})
    assert len(call.id) == 9
    assert call.id.isalnum()
