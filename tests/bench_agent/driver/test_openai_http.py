from __future__ import annotations

import pytest
from scripted_openai import Script, ScriptedServer

from sessile.bench_agent.driver.ask import Ask, Sampling, ServerBusy, ServerUnreachable, TurnRefused
from sessile.bench_agent.driver.dialects import DIALECTS, dialect_named
from sessile.bench_agent.driver.observation import Observation
from sessile.bench_agent.driver.openai_http import OpenAiDriver
from sessile.bench_agent.driver.sse import EventReader
from sessile.bench_agent.errors import BenchError
from sessile.bench_agent.workload.plan import Message, ToolCall

ASK = Ask(index=0, conversation=(Message("user", "hi"),), new=(Message("user", "hi"),), sampling=Sampling(max_tokens=3))


async def run(server: ScriptedServer, ask: Ask = ASK, **options: object) -> Observation:
    options = {"model": "m", "dialect": dialect_named("sessile")} | options
    driver = OpenAiDriver(server.url, **options)
    seen = Observation()
    try:
        await driver.conversation("s-1").turn(ask, seen)
    finally:
        await driver.close()
    return seen


async def test_a_turn_is_observed() -> None:
    async with ScriptedServer(Script()) as server:
        seen = await run(server, session_header="x-session-id", extra={"top_k": 1}, headers={"x-key": "k"})
    assert seen.text == "word word word "
    assert len(seen.arrivals) == 3 and seen.started < seen.arrivals[0][0] <= seen.ended
    assert (seen.usage.completion_tokens, seen.usage.cached_tokens) == (3, (seen.usage.prompt_tokens or 0) // 2)
    served = server.served[0]
    assert served.headers["x-session-id"] == "s-1" and served.headers["x-key"] == "k"
    assert served.body["ignore_eos"] is True and served.body["top_k"] == 1
    assert served.body["messages"] == [{"role": "user", "content": "hi"}]
    assert served.body["stream_options"] == {"include_usage": True}


async def test_text_goes_to_completions() -> None:
    async with ScriptedServer(Script()) as server:
        seen = await run(server, Ask(index=0, text="once", sampling=Sampling(max_tokens=2, logprobs=1)))
    assert server.served[0].body["prompt"] == "once" and server.served[0].body["logprobs"] == 1
    assert seen.text == "word word "


async def test_tool_calls_are_sent_as_openai_has_them() -> None:
    call = Message("assistant", "", (ToolCall("c1", "look", '{"a":1}'),))
    ask = Ask(
        index=1,
        conversation=(Message("user", "x"), call, Message("tool", "out", (), "c1")),
        sampling=Sampling(max_tokens=1),
    )
    async with ScriptedServer(Script()) as server:
        await run(server, ask)
    sent = server.served[0].body["messages"]
    assert sent[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"a":1}'}
    assert sent[2]["tool_call_id"] == "c1"


@pytest.mark.parametrize(
    ("status", "error"), [(400, TurnRefused), (500, TurnRefused), (429, ServerBusy), (503, ServerBusy)]
)
async def test_refusals(status: int, error: type[Exception]) -> None:
    async with ScriptedServer(Script(status=lambda _: status)) as server:
        with pytest.raises(error, match=str(status)):
            await run(server)


async def test_a_connection_that_breaks_keeps_what_had_come() -> None:
    async with ScriptedServer(Script(dies_after=2)) as server:
        driver = OpenAiDriver(server.url, model=None, dialect=dialect_named("openai"))
        seen = Observation()
        with pytest.raises(ServerUnreachable):
            await driver.conversation("s").turn(ASK, seen)
        await driver.close()
    assert seen.text == "word word " and seen.ended >= seen.arrivals[-1][0]


async def test_nobody_listens() -> None:
    driver = OpenAiDriver("http://127.0.0.1:9", model=None, dialect=dialect_named("openai"))
    with pytest.raises(ServerUnreachable):
        await driver.conversation("s").turn(ASK, Observation())
    await driver.close()


async def test_cold_conversations_are_apart() -> None:
    async with ScriptedServer(Script()) as server:
        driver = OpenAiDriver(server.url, model=None, dialect=dialect_named("vllm"))
        cold = driver.cold_conversation("n1")
        assert cold is not None
        await cold.turn(ASK, Observation())
        await driver.close()
        assert server.served[0].body["cache_salt"] == "n1"
        plain = OpenAiDriver(server.url, model=None, dialect=dialect_named("openai"))
        assert plain.cold_conversation("n1") is None
        await plain.close()


@pytest.mark.parametrize(
    ("name", "field"), [("vllm", "ignore_eos"), ("llama-cpp-python", "min_tokens"), ("openai", None)]
)
def test_dialects_make_answers_equally_long(name: str, field: str | None) -> None:
    assert [*dialect_named(name).exact_length(7)] == ([field] if field else [])
    with pytest.raises(BenchError, match="vllm"):
        dialect_named("nobody")
    assert set(DIALECTS) >= {"sessile", "vllm", "llama-server"}


def test_events_are_cut_wherever_the_bytes_are() -> None:
    raw = (
        b'data: {"choices":[{"delta":{"tool_calls":'
        b'[{"index":0,"id":"c","function":{"name":"f","arguments":"{"}}]}}]}\r\n\r\n'
        b": a comment\n\n"
        b'data: {"choices":[{"delta":{"content":"\xc3\xa9"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )
    for size in (1, 7, len(raw)):
        reader = EventReader()
        found = [chunk for at in range(0, len(raw), size) for chunk in reader.feed(raw[at : at + size])]
        assert len(found) == 2
        assert found[1].choices[0].delta is not None and found[1].choices[0].delta.content == "é"
