"""What a connection may cost: headers without an end, requests that never come, answers that nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from served import served

from sessile.server.web.application import create_app
from sessile.server.web.http_config import HttpConfig

BOUNDS = HttpConfig(max_header_bytes=4096, send_timeout_s=0.3, read_timeout_s=0.3)
PATIENT = HttpConfig(max_header_bytes=4096, send_timeout_s=600.0, read_timeout_s=600.0)


def listening(stage, bounds: HttpConfig) -> contextlib.AbstractAsyncContextManager[tuple[str, int]]:
    return served(create_app(stage.parts()), bounds)


async def answer_to(address: tuple[str, int], *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """What comes back until the connection is closed; ``b""`` where it is reset."""
    reader, writer = await asyncio.open_connection(*address)
    found = b""
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
            while part := await reader.read(65536):
                found += part
    writer.close()
    return found


GET = b"GET /health HTTP/1.1\r\nhost: a\r\n"
CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (GET + b"x: " + b"a" * 5000 + b"\r\n\r\n",),
        (GET, *[b"x-%d: %s\r\n" % (n, b"a" * 100) for n in range(60)]),  # never ends
        (b"GET /" + b"a" * 6000,),
        (CHUNKED + b"0\r\n", *[b"x-%d: %s\r\n" % (n, b"a" * 100) for n in range(60)]),  # trailers
    ],
)
async def test_headers_are_bounded(stage, pieces: tuple[bytes, ...]) -> None:
    async with listening(stage, PATIENT) as address:
        assert (await answer_to(address, *pieces)).startswith(b"HTTP/1.1 431 ")
        assert (await answer_to(address, GET + b"connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "start", [b"", b"G", GET, b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{"]
)
async def test_a_request_that_does_not_come_is_not_waited_for(stage, start: bytes) -> None:
    async with listening(stage, BOUNDS) as address:
        assert (await answer_to(address, start)).startswith(b"HTTP/1.1 408 ")
    assert stage.turns.requests == []


async def test_a_body_may_take_its_time_as_long_as_it_comes(stage, chat_body) -> None:
    body = json.dumps(chat_body).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(
        body
    )
    async with listening(stage, HttpConfig(send_timeout_s=5.0)) as address:
        pieces = [body[start : start + 16] for start in range(0, len(body), 16)]
        assert (await answer_to(address, head, *pieces, pause_s=0.02)).startswith(b"HTTP/1.1 200 ")


async def test_a_connection_is_used_again_whatever_time_lies_between(stage) -> None:
    async with listening(stage, BOUNDS) as address:
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(3):
            writer.write(GET + b"\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            await asyncio.sleep(2 * BOUNDS.send_timeout_s)
        writer.close()


async def test_an_idle_connection_ends(stage) -> None:
    async with listening(stage, HttpConfig(keep_alive_s=1)) as address:
        assert (await answer_to(address, GET + b"\r\n")).startswith(b"HTTP/1.1 200 ")  # read to the server's end of it


async def test_a_client_that_never_reads_is_cut_off_and_its_turn_ends(stage, chat_body, make_deltas) -> None:
    stage.turns.script = make_deltas(*(["x" * 100_000] * 400))
    body = json.dumps(chat_body | {"stream": True}).encode()
    async with listening(stage, BOUNDS) as address:
        reader, writer = await asyncio.open_connection(*address, limit=1024)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        async with asyncio.timeout(60):
            while not stage.turns.closed:
                await asyncio.sleep(0.02)
        writer.close()
        del reader
