"""What is running: which sessions have a turn, and whether new work is still taken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import Draining, SessionBusy

_RETRY_AFTER_S = 1.0


class RunningWork:
    """Counts the work in hand and lets one change at a time into a session. For one event loop."""

    def __init__(self) -> None:
        self._in_hand = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._request_by_session: dict[str, str | None] = {}

    @property
    def in_hand(self) -> int:
        """Requests admitted and not finished."""
        return self._in_hand

    @property
    def draining(self) -> bool:
        return self._draining

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Work that a drain waits for. Raises Draining after ``drain`` was called."""
        if self._draining:
            raise Draining(
                "the server is shutting down", remedy="send it again in a moment", retry_after_s=_RETRY_AFTER_S
            )
        self._in_hand += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_hand -= 1
            if not self._in_hand:
                self._idle.set()

    async def drain(self) -> None:
        """Take no new work, and wait until there is none in hand."""
        self._draining = True
        await self._idle.wait()

    def is_busy(self, session_id: str) -> bool:
        return session_id in self._request_by_session

    @contextmanager
    def alone_in(self, session_id: str, request_id: str | None) -> Iterator[None]:
        """Nothing else changes the session meanwhile. Raises SessionBusy if something does already."""
        if session_id in self._request_by_session:
            raise self._busy(session_id, request_id)
        self._request_by_session[session_id] = request_id
        try:
            yield
        finally:
            del self._request_by_session[session_id]

    def _busy(self, session_id: str, request_id: str | None) -> SessionBusy:
        if request_id is not None and request_id == self._request_by_session[session_id]:
            return SessionBusy(
                "this request is running already",
                field="request_id",
                remedy="send it again when it is done, for its answer",
                retry_after_s=_RETRY_AFTER_S,
            )
        return SessionBusy(
            f"a turn is running in session {session_id}", remedy="wait for its end, cancel it, or fork the session"
        )
