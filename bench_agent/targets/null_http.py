"""A null server that speaks as much of OpenAI's protocol as the driver needs."""

from __future__ import annotations

import asyncio
import time

import msgspec

from ..arrival_stamps import StampedSockets
from .null_pace import Pace

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_NOTHING = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class _Body(msgspec.Struct):
    max_tokens: int = 16


class NullHttpServer:
    """Answers on one port of the loopback interface."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._body = msgspec.json.Decoder(_Body)
        self._server: asyncio.Server | None = None
        self._sockets = StampedSockets()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> int:
        """Listen; returns the port."""
        listener = self._sockets.listening("127.0.0.1")
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=2**22, backlog=1024)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Listen no more, and break off what runs."""
        if self._server is not None:
            self._server.close()
        writers = list(self._writers)
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        socket = self._sockets.under(writer.transport)
        assert socket is not None
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET "):
                    writer.write(_NOTHING)
                    continue
                body = await reader.readexactly(_content_length(head))
                received = socket.came_in(time.perf_counter)
                await self._answer(writer, received, self._body.decode(body).max_tokens)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):  # cancelled: the program ends
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, received: float, tokens: int) -> None:
        writer.write(_HEAD)
        async for stamps in self._pace.pieces(received, tokens):
            _write_event(writer, b'{"choices":[{"delta":{"content":"' + stamps.encode() + b'"}}]}')
        usage = {"prompt_tokens": 1, "completion_tokens": tokens}
        _write_event(writer, msgspec.json.encode({"choices": [], "usage": usage}))
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()


def _write_event(writer: asyncio.StreamWriter, payload: bytes) -> None:
    event = b"data: " + payload + b"\n\n"
    writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0
