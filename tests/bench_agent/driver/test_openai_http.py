from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from scripted_openai import Script, ScriptedServer

from sessile.bench_agent.driver.ask import (
    Ask,
    Conversation,
    Sampling,
    ServerBusy,
    ServerSilent,
    ServerUnreachable,
    TurnRefused,
)
from sessile.bench_agent.driver.dialects import DIALECTS, dialect_named
from sessile.bench_agent.driver.logprobs import echoed_logprobs
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


PIECE = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
DONE = b"data: [DONE]\n\n"


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def talking_to(answer: Handler, *, timeout_s: float = 600.0) -> AsyncIterator[Conversation]:
    """A conversation with a server that answers so."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with TestServer(app) as server:
        url = str(server.make_url("/"))
        driver = OpenAiDriver(url, model=None, dialect=dialect_named("openai"), timeout_s=timeout_s)
        try:
            yield driver.conversation("s")
        finally:
            await driver.close()


async def answered(body: bytes, *, status: int = 200, kind: str = "text/event-stream") -> Observation:
    """What is seen of a turn of three tokens whose answer is this."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status, headers={"content-type": kind})

    seen = Observation()
    async with talking_to(answer) as conversation:
        await conversation.turn(ASK, seen)
    return seen


def left_open(sends: bytes, gate: asyncio.Event) -> Handler:
    """Sends this, and does not end the connection's message before the gate is open."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(sends)
        await gate.wait()
        return response

    return answer


@pytest.mark.parametrize(
    "body",
    [PIECE + DONE, PIECE + END, PIECE + USAGE, 3 * PIECE, PIECE + DONE.rstrip(), (PIECE + DONE).replace(b"\n", b"\r")],
    ids=["done", "finish reason", "usage", "as long as asked", "no last line end", "carriage returns"],
)
async def test_an_answer_may_end_in_many_ways(body: bytes) -> None:
    assert (await answered(body)).text.startswith("a")


@pytest.mark.parametrize(
    ("body", "kind", "error", "said"),
    [
        (PIECE, "text/event-stream", ServerUnreachable, "ended before the answer did"),
        (DONE, "text/event-stream", TurnRefused, "the answer is empty"),
        (b"", "text/event-stream", TurnRefused, "no stream of events"),
        (b'{"choices":[{"message":{"content":"hi"}}]}', "application/json", TurnRefused, "but application/json: .*hi"),
        (b"<html>", "text/html", TurnRefused, "but text/html: <html>"),
        (b"data: {broken\n\n", "text/event-stream", TurnRefused, "cannot be read"),
        (b'data: {"choices":[{"delta":{"content":5}}]}\n\n', "text/event-stream", TurnRefused, "cannot be read"),
        (b"data: {broken", "text/event-stream", TurnRefused, "cannot be read"),
        (b'data: {"error":"out of memory"}\n\n', "text/event-stream", TurnRefused, "out of memory"),
        (
            b'data: {"choices":[{"delta":{"content":"a"},"logprobs":{"content":[{"token":"a"}]}}]}\n\n',
            "text/event-stream",
            TurnRefused,
            "logprobs that cannot be read",
        ),
    ],
)
async def test_what_is_no_answer_or_half_of_one_is_a_failed_turn(
    body: bytes, kind: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        await answered(body, kind=kind)


async def test_a_refusal_in_letters_that_cannot_be_read() -> None:
    with pytest.raises(TurnRefused, match="answered 500: oops"):
        await answered(b"oops \xff", status=500, kind="text/html; charset=of-our-own")


async def test_reasoning_by_either_name_is_a_piece_and_events_without_choices_are_none() -> None:
    pieces = b"".join(
        b'data: {"choices":[{"delta":{"%s":"hm"}}]}\n\n' % name for name in (b"reasoning", b"reasoning_content")
    )
    seen = await answered(pieces + b'data: {"choices":null,"timings":{"prompt_ms":null}}\n\n' + DONE)
    assert len(seen.arrivals) == 2 and seen.text == ""


async def test_an_answer_is_over_at_its_last_event_though_the_connection_stays_open() -> None:
    gate, seen = asyncio.Event(), Observation()
    async with talking_to(left_open(PIECE + DONE, gate)) as conversation:
        await conversation.turn(ASK, seen)
        assert seen.text == "a" and seen.ended == seen.arrivals[-1][0]
        gate.set()


@pytest.mark.parametrize(("sends", "error"), [(b"", ServerSilent), (PIECE, TurnRefused)])
async def test_a_turn_that_is_not_over_in_time(sends: bytes, error: type[Exception]) -> None:
    gate = asyncio.Event()
    async with talking_to(left_open(sends, gate), timeout_s=0.2) as conversation:
        with pytest.raises(error, match=r"not over within 0\.2 s"):
            await conversation.turn(ASK, Observation())
        gate.set()


async def test_a_sessions_name_of_any_letters_goes_into_a_header() -> None:
    async with ScriptedServer(Script()) as server:
        driver = OpenAiDriver(server.url, model=None, dialect=dialect_named("openai"), session_header="x-session-id")
        await driver.conversation("a b\r\né").turn(ASK, Observation())
        await driver.close()
    assert server.served[0].headers["x-session-id"] == "a b%0D%0A%C3%A9"


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b'{"choices":[]}', b'{"choices":[{"logprobs":{"token_logprobs":["x"]}}]}']
)
def test_echoed_logprobs_that_cannot_be_read(body: bytes) -> None:
    with pytest.raises(TurnRefused, match="cannot be read"):
        echoed_logprobs(body)


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
        assert (
            found[1].choices is not None
            and found[1].choices[0].delta is not None
            and found[1].choices[0].delta.content == "é"
        )
