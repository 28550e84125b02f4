"""Over a real socket: streams arrive as they are made, and a client that goes away ends its turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from served import served

from sessile.server.web.application import create_app
from sessile.server.web.http_config import HttpConfig
from sessile.sessions.manager.turn_events import TextDelta


@pytest.fixture
async def address(stage) -> AsyncIterator[tuple[str, int]]:
    async with served(create_app(stage.parts())) as address:
        yield address


async def _until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_deltas_arrive_one_by_one(stage, address, chat_body, make_deltas, finished):
    gate = asyncio.Event()
    stage.turns.script = [*make_deltas("a"), gate, *make_deltas("b"), finished]
    async with (
        httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}") as client,
        client.stream("POST", "/v1/chat/completions", json=chat_body | {"stream": True}) as response,
    ):
        lines = response.aiter_lines()
        seen = ""
        async for line in lines:
            if line.startswith("data: {"):
                seen += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
            if seen == "a":
                gate.set()
        assert seen == "ab"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("first", [True, False])
async def test_a_client_that_goes_away_ends_its_turn(stage, address, chat_body, make_deltas, stream, first):
    never = asyncio.Event()
    stage.turns.script = [*(make_deltas("a") if first else []), never]
    _, writer = await asyncio.open_connection(*address)
    body = json.dumps(chat_body | {"stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    await _until(lambda: stage.turns.requests)
    assert stage.turns.closed == 0
    writer.close()
    await writer.wait_closed()
    await _until(lambda: stage.turns.closed == 1)


async def test_connections_are_kept_alive(stage, address, chat_body):
    async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}") as client:
        streams = set()
        for stream in (False, True, False):
            response = await client.post("/v1/chat/completions", json=chat_body | {"stream": stream})
            streams.add(response.extensions["network_stream"].get_extra_info("client_addr"))
        assert len(streams) == 1


async def test_a_lying_length_is_no_turn(stage, address):
    _, writer = await asyncio.open_connection(*address)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{}")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}") as client:
        assert (await client.get("/health")).status_code == 200
    assert stage.turns.requests == []


async def test_a_slow_reader_slows_its_own_stream_only(stage, address, chat_body, finished):
    """One client stops reading in the middle of a long answer: its turn waits for it, and others run to their ends."""
    long = [TextDelta(text="x" * 1000, token_ids=(1,)) for _ in range(20_000)]  # more than the buffers between us hold
    stage.turns.script = [*long, finished]
    body = json.dumps(chat_body | {"stream": True}).encode()
    reader, writer = await asyncio.open_connection(*address, limit=2**16)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    begun = await reader.readuntil(b"\r\n\r\n")
    assert begun.startswith(b"HTTP/1.1 200")
    stage.turns.script = [TextDelta(text="quick", token_ids=(1,)), finished]
    async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}") as client:
        for stream in (True, False):
            answer = await client.post("/v1/chat/completions", json=chat_body | {"stream": stream})
            assert "quick" in answer.text
    assert stage.turns.closed == 2  # the slow one's turn is not over: it waits for its reader
    size = 0
    while b"[DONE]" not in (piece := await reader.read(2**20)):
        size += len(piece)
    assert size > 20_000_000
    await _until(lambda: stage.turns.closed == 3)
    writer.close()


def test_an_idle_connection_is_kept_for_longer_than_clients_keep_theirs() -> None:
    """Else a request after a tool's gap is sent into a connection that the server just closed (found by the soak)."""
    client = httpx.AsyncHTTPTransport()
    pool = client._pool
    assert pool._keepalive_expiry is not None
    assert 10 * pool._keepalive_expiry < HttpConfig().keep_alive_s
