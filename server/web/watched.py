"""Answers that last: what is sent while the connection is watched, and ends at once with the client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Generic, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...sessions.errors import SessileError
from .connection import while_connected
from .errors import error_body
from .event_stream import COMMENT, EVENT_STREAM, EventStream

_encode = msgspec.json.Encoder().encode
_Item = TypeVar("_Item")


class LastingAnswer(Response):
    """An answer whose length nobody knows when it begins. Events are not to be kept by caches."""

    def __init__(self, headers: Mapping[str, str] | None = None, media_type: str | None = None) -> None:
        super().__init__(headers=headers, media_type=media_type or self.media_type)
        del self.headers["content-length"]
        if self.media_type == EVENT_STREAM:
            self.headers["cache-control"] = "no-cache"


class Streamed(LastingAnswer, Generic[_Item]):
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
        super().__init__(headers, media_type)
        self._items = items
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(self._send_all(send), receive)

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._items) as items:
            first = await anext(items, None)
            piece = b"" if first is None else self._write(first)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            async for item in items:
                await send({"type": "http.response.body", "body": self._write(item), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class StreamedEvents(LastingAnswer, Generic[_Item]):
    """Sends what ``items`` gives as server-sent events, with a ping after ``ping_s`` seconds without any.

    An error before the first of them is raised, for the application to answer with its own status; a later one is an
    event.
    """

    media_type = EVENT_STREAM

    def __init__(self, items: AsyncGenerator[_Item, None], write: Callable[[_Item], bytes], ping_s: float) -> None:
        super().__init__()
        self._items = items
        self._write = write
        self._ping_s = ping_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(self._send_all(EventStream(send, self.raw_headers, COMMENT, self._ping_s)), receive)

    async def _send_all(self, stream: EventStream) -> None:
        last = b""
        async with aclosing(self._items) as items, stream.kept_alive():
            try:
                async for item in items:
                    await stream.write(self._write(item))
            except SessileError as error:
                if not stream.started:
                    raise
                last = sse_error(error)
            await stream.write(last, last=True)


def sse(name: str, value: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(value) + b"\n\n"


def sse_error(error: SessileError) -> bytes:
    """The last event of a stream that fails in its middle."""
    return b"event: error\ndata: " + _encode(error_body(error)) + b"\n\n"
