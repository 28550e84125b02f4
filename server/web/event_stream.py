"""The sending side of server-sent events. It pings while nothing is sent, so that nobody takes it for dead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from starlette.types import Send

from ..tasks import end

EVENT_STREAM = "text/event-stream"
COMMENT = b": ping\n\n"  # an event stream's comment: readers pass over it


class EventStream:
    """``headers``: of the answer. ``ping`` is sent whenever nothing else was for ``every_s`` seconds."""

    def __init__(self, send: Send, headers: Iterable[tuple[bytes, bytes]], ping: bytes, every_s: float) -> None:
        self._send = send
        self._headers = list(headers)
        self._ping = ping
        self._every_s = every_s
        self._turn_to_send = asyncio.Lock()
        self._sent_at = time.monotonic()
        self.started = False

    async def start(self) -> None:
        """Begin the answer, unless it has begun."""
        async with self._turn_to_send:
            await self._start()

    async def write(self, piece: bytes, *, last: bool = False) -> None:
        """Send some events; ``last``: they are the last ones."""
        async with self._turn_to_send:
            await self._start()
            await self._send({"type": "http.response.body", "body": piece, "more_body": not last})
            self._sent_at = time.monotonic()

    async def _start(self) -> None:
        if not self.started:
            self.started = True  # an error from here on is an event, not a status
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Ping until the end of the context. A ping begins the answer, if nothing has."""
        pinging = asyncio.ensure_future(self._pings())
        try:
            yield
        finally:
            await end(pinging)

    async def _pings(self) -> None:
        while True:
            idle_s = time.monotonic() - self._sent_at
            if idle_s < self._every_s:
                await asyncio.sleep(self._every_s - idle_s)
            else:
                await self.write(self._ping)
