"""A client that speaks HTTP/2 byte by byte, and so can do what no gRPC library does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
ACK = END_STREAM = 1
END_HEADERS = 4
REFUSED_STREAM, ENHANCE_YOUR_CALM = 7, 11  # error codes


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def error_code(self) -> int:
        """Of RST_STREAM and GOAWAY."""
        start = 4 if self.kind == GOAWAY else 0
        return int.from_bytes(self.payload[start : start + 4], "big")


class RawHttp2:
    """One connection. Nothing is sent or answered by itself, not even a ping."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> None:
        head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
        self._writer.write(head + payload)

    def greet(self) -> None:
        """What a client must say first."""
        self._writer.write(PREFACE)
        self.send(SETTINGS)

    async def settle(self) -> None:
        """Greet, wait for the server's settings, and accept them."""
        self.greet()
        while (frame := await self.next()) is not None:
            if frame.kind == SETTINGS and not frame.flags & ACK:
                self.send(SETTINGS, ACK)
                return

    def call(self, stream: int, path: str, message: bytes | None = None) -> None:
        """Begin a call; with ``message`` it is all of the request."""
        fields = (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")
        more = ("te", "trailers"), ("content-type", "application/grpc")
        block = b"".join(_literal(name) + _literal(value, b"") for name, value in (*fields, *more))
        self.send(HEADERS, END_HEADERS, stream, block)
        if message is not None:
            self.send(DATA, END_STREAM, stream, b"\0" + len(message).to_bytes(4, "big") + message)

    async def next(self) -> Frame | None:
        """The next frame; None when the connection is closed."""
        try:
            head = await self._reader.readexactly(9)
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return Frame(head[3], head[4], int.from_bytes(head[5:], "big"), payload)

    async def rest(self) -> list[Frame]:
        """All frames until the connection is closed."""
        frames = []
        while (frame := await self.next()) is not None:
            frames.append(frame)
        return frames


def _literal(text: str, before: bytes = b"\0") -> bytes:
    return before + bytes((len(text),)) + text.encode()


@asynccontextmanager
async def raw_http2(port: int) -> AsyncIterator[RawHttp2]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield RawHttp2(reader, writer)
    finally:
        writer.transport.abort()
