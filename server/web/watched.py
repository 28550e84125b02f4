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

_encode = msgspec.json.Encoder().encode
_Item = TypeVar("_Item")


class Streamed(Response):
    """Sends what ``items`` gives, each through ``write``, and closes it at the end.

    An error before the first item is raised, for the application to answer with its own status. ``write_error`` says
    what a later one looks like; None: the connection breaks off, so that nobody takes a part for the whole.
    """

    def __init__(
        self,
        items: AsyncGenerator[_Item, None],
        write: Callable[[_Item], bytes],
        media_type: str,
        headers: Mapping[str, str] | None = None,
        write_error: Callable[[SessileError], bytes] | None = None,
    ) -> None:
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._pieces = _written(items, write, write_error)

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


async def _written(
    items: AsyncGenerator[_Item, None],
    write: Callable[[_Item], bytes],
    write_error: Callable[[SessileError], bytes] | None,
) -> AsyncGenerator[bytes, None]:
    begun = False
    try:
        async for item in items:
            yield write(item)
            begun = True
    except SessileError as error:
        if not begun or write_error is None:
            raise
        yield write_error(error)
    finally:
        await items.aclose()


def sse(name: str, value: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(value) + b"\n\n"


def sse_error(error: SessileError) -> bytes:
    """The last event of a stream that fails in its middle."""
    return b"event: error\ndata: " + _encode(error_body(error)) + b"\n\n"
