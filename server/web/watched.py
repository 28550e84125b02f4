"""Answers that last: what is sent while the connection is watched, and ends at once with the client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...sessions.errors import SessileError
from .connection import while_connected
from .errors import error_body
from .event_stream import COMMENT, EventStream

_encode = msgspec.json.Encoder().encode
_Item = TypeVar("_Item")


class Streamed(Response):
    """Sends what ``items`` gives, each through ``write``, and closes it at the end.

    An error before the first item is raised, for the application to answer with its own status; a later one breaks the
    connection off, so that nobody takes a part for the whole.
    """

    def __init__(
        self,
        items: AsyncGenerator[_Item, None],
        write: Callable[[_Item], bytes],
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._pieces = _written(items, write)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(self._send_all(send), receive)

    async def _send_all(self, send: Send) -> None:
        try:
            first = await anext(self._pieces, b"")
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._pieces.aclose()


class StreamedEvents(Response):
    """Sends what ``items`` gives as server-sent events, with a ping after ``ping_s`` seconds without any.

    An error before the first of them is raised, for the application to answer with its own status; a later one is an
    event.
    """

    media_type = "text/event-stream"

    def __init__(self, items: AsyncGenerator[_Item, None], write: Callable[[_Item], bytes], ping_s: float) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._pieces = _written(items, write)
        self._ping_s = ping_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(self._send_all(EventStream(send, self.raw_headers, COMMENT, self._ping_s)), receive)

    async def _send_all(self, stream: EventStream) -> None:
        last = b""
        try:
            async with stream.kept_alive():
                try:
                    async for piece in self._pieces:
                        await stream.write(piece)
                except SessileError as error:
                    if not stream.started:
                        raise
                    last = sse_error(error)
                await stream.write(last, last=True)
        finally:
            await self._pieces.aclose()


async def _written(items: AsyncGenerator[_Item, None], write: Callable[[_Item], bytes]) -> AsyncGenerator[bytes, None]:
    try:
        async for item in items:
            yield write(item)
    finally:
        await items.aclose()


def sse(name: str, value: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(value) + b"\n\n"


def sse_error(error: SessileError) -> bytes:
    """The last event of a stream that fails in its middle."""
    return b"event: error\ndata: " + _encode(error_body(error)) + b"\n\n"
