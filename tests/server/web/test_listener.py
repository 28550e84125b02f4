"""So many connections at once and no more: whatever they say, or do not say, others come in."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from authority import Authority

from sessile.server.config import ServerConfig
from sessile.server.front import serve_http
from sessile.server.identity.auth_config import TlsConfig
from sessile.server.identity.certificates import Certificates
from sessile.server.tasks import end
from sessile.server.web.http_config import HttpConfig
from sessile.server.web.http_listener import HttpListener

GET = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"
LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)  # a server runs on uvloop
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a test in a loop of its own, for a minute at most."""
    monkeypatch.setattr("sessile.server.web.http_protocol._LINGER_S", 0.1)

    def run(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(test, 60))

    return run


@contextlib.asynccontextmanager
async def listening(
    stage: Any, *, certificates: Certificates | None = None, sockets: type[socket.socket] = socket.socket, **bounds: Any
) -> AsyncIterator[tuple[HttpListener, int]]:
    """A server with places for two connections, and its port."""
    http = HttpConfig(max_connections=2, **bounds)
    plain = sockets(fileno=socket.create_server(("127.0.0.1", 0)).detach())
    door = HttpListener(plain, http.max_connections, http.send_timeout_s)
    port = plain.getsockname()[1]
    parts = dataclasses.replace(stage.parts(), connections=door.counts)
    async with serve_http(parts, door, ServerConfig(http=http), certificates):
        yield door, port


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connected(cls, port: int, context: ssl.SSLContext | None = None) -> Client:
        return cls(
            *await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=context and "localhost")
        )

    def send(self, content: bytes) -> None:
        self._writer.write(content)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = dict(line.split(": ", 1) for line in lines if line)
        return int(first.split()[1]), headers, await self._reader.readexactly(int(headers["content-length"]))

    async def rest(self) -> bytes:
        with contextlib.suppress(ConnectionError):
            return await self._reader.read()
        return b""

    def close(self) -> None:
        self._writer.transport.abort()


async def settled(door: HttpListener, *, open_: int) -> None:
    while door.counts().open != open_:
        await asyncio.sleep(0.005)


def test_more_than_the_bound_are_told_when_to_come_again(stage: Any, run: Run) -> None:
    async def test() -> None:
        async with listening(stage) as (door, port):
            first, second = [await Client.connected(port) for _ in range(2)]
            await settled(door, open_=2)
            third = await Client.connected(port)
            third.send(GET)
            status, headers, body = await third.answer()
            assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
            error = json.loads(body)["error"]
            assert (error["code"], error["type"]) == ("too_many_connections", "server_error")
            assert "2 connections are open already" in error["message"]
            assert "--http-max-connections" in error["message"]
            assert await third.rest() == b""
            for client in (first, second, first):  # those that have a place are served, again and again
                client.send(GET)
                assert (await client.answer())[0] == 200
            second.send(GET.replace(b"/health", b"/metrics"))
            metrics = (await second.answer())[2].decode()
            assert "sessile_http_connections 2.0" in metrics
            assert "sessile_http_connections_refused_total 1.0" in metrics
            first.close()
            await settled(door, open_=1)
            fourth = await Client.connected(port)
            fourth.send(GET)
            assert (await fourth.answer())[0] == 200
        for client in (second, third, fourth):
            client.close()

    run(test())


@pytest.mark.parametrize("said", [b"", GET[:-2], GET], ids=["nothing", "half a request", "a request, and then nothing"])
def test_those_that_say_nothing_lose_their_places(stage: Any, run: Run, said: bytes) -> None:
    async def test() -> None:
        async with listening(stage, send_timeout_s=0.2, keep_alive_s=1) as (door, port):
            silent = [await Client.connected(port) for _ in range(2)]
            for client in silent:
                client.send(said)
            for client in silent:
                await client.rest()  # until it is cut off
            await settled(door, open_=0)
            client = await Client.connected(port)
            client.send(GET)
            assert (await client.answer())[0] == 200
            for gone in (*silent, client):
                gone.close()

    run(test())


def test_those_that_say_little_lose_their_places(stage: Any, run: Run) -> None:
    """A byte at a time, of headers and of a body: what comes does not win time for what does not."""

    async def drip(client: Client, start: bytes, piece: bytes) -> None:
        client.send(start)
        while True:
            client.send(piece)
            await asyncio.sleep(0.02)

    async def test() -> None:
        async with listening(stage, send_timeout_s=0.3) as (door, port):
            post = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n"
            clients = [await Client.connected(port) for _ in range(2)]
            drips = [
                asyncio.ensure_future(drip(client, start, piece))
                for client, start, piece in zip(clients, (GET[:-2], post), (b"x: y\r\n", b"x"), strict=True)
            ]
            for client in clients:
                assert (await client.answer())[0] == 408
            for task in drips:
                await end(task)
            await settled(door, open_=0)
            for client in clients:
                client.close()

    run(test())


def test_over_tls_handshakes_have_places_too(stage: Any, run: Run, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue()
    certificates = Certificates.configured(TlsConfig(cert=issued.cert, key=issued.key))
    context = ssl.create_default_context(cadata=authority.root.decode())

    async def test() -> None:
        async with listening(stage, certificates=certificates, send_timeout_s=60) as (door, port):
            silent = [await Client.connected(port) for _ in range(2)]
            await settled(door, open_=2)
            with pytest.raises((OSError, ssl.SSLError)):
                await Client.connected(port, context)
            assert door.counts().refused == 1
            for gone in silent:
                gone.close()
        async with listening(stage, certificates=certificates, send_timeout_s=0.5) as (door, port):
            silent = [await Client.connected(port) for _ in range(2)]
            for gone in silent:
                await gone.rest()
            await settled(door, open_=0)
            strange = await Client.connected(port)
            strange.send(GET)  # no TLS: its place is free at once
            await strange.rest()
            await settled(door, open_=0)
            client = await Client.connected(port, context)
            client.send(GET)
            assert (await client.answer())[0] == 200
            assert door.counts().open == 1
            for gone in (*silent, strange, client):
                gone.close()

    run(test())


def test_a_flood_keeps_few_waiting_for_their_refusal(stage: Any, run: Run) -> None:
    async def test() -> None:
        async with listening(stage) as (door, port):
            clients = [await Client.connected(port) for _ in range(300)]
            while door.counts().refused < 298:
                await asyncio.sleep(0.005)
            assert len(door._told) <= 64
            for client in clients:
                client.close()

    run(test())


class OutOfFiles(socket.socket):
    """Cannot accept the first time."""

    tried = 0

    def accept(self) -> tuple[socket.socket, Any]:
        OutOfFiles.tried += 1
        if OutOfFiles.tried == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_a_process_that_is_out_of_files_accepts_again_later(
    stage: Any, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sessile.server.web.http_listener._PAUSE_S", 0.01)
    monkeypatch.setattr(OutOfFiles, "tried", 0)

    async def test() -> None:
        async with listening(stage, sockets=OutOfFiles) as (_, port):
            client = await Client.connected(port)
            client.send(GET)
            assert (await client.answer())[0] == 200
            client.close()

    run(test())
    assert "no connection over HTTP is accepted for" in caplog.text
