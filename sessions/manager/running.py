"""What is running: which sessions have a turn, and whether new work is still taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from ..errors import Draining, SessionBusy

_RETRY_AFTER_S = 1.0


class Claim:
    """A session held for one change."""

    def __init__(self, request_id: str | None) -> None:
        self.request_id = request_id
        self.released = asyncio.Event()
        self._ending = False

    @property
    def ending(self) -> bool:
        """Whether the change is sure to be over in a moment, so that the next one waits instead of being refused."""
        return self._ending

    def is_ending(self) -> None:
        """Say that nothing is left but a commit or a cleaning up."""
        self._ending = True


class RunningWork:
    """Counts the work in hand and lets one change at a time into a session. For one event loop."""

    def __init__(self) -> None:
        self._in_hand = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._claims: dict[str, Claim] = {}

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
        return session_id in self._claims

    def is_refusing(self, session_id: str) -> bool:
        """Whether a change of this session would be refused now."""
        claim = self._claims.get(session_id)
        return claim is not None and not claim.ending

    async def settled(self, session_id: str) -> None:
        """Wait while a change of the session is ending, so that what is read then is its outcome."""
        while (holder := self._claims.get(session_id)) is not None and holder.ending:
            await holder.released.wait()

    @asynccontextmanager
    async def alone_in(self, session_id: str, request_id: str | None) -> AsyncIterator[Claim]:
        """Nothing else changes the session meanwhile. Raises SessionBusy if something does, and is not ending."""
        await self.settled(session_id)
        holder = self._claims.get(session_id)
        if holder is not None:
            raise _busy(session_id, holder, request_id)
        claim = self._claims[session_id] = Claim(request_id)
        try:
            yield claim
        finally:
            del self._claims[session_id]
            claim.released.set()


def _busy(session_id: str, holder: Claim, request_id: str | None) -> SessionBusy:
    if request_id is not None and request_id == holder.request_id:
        return SessionBusy(
            "this request is running already",
            field="request_id",
            remedy="send it again when it is done, for its answer",
            retry_after_s=_RETRY_AFTER_S,
        )
    return SessionBusy(
        f"a turn is running in session {session_id}", remedy="wait for its end, cancel it, or fork the session"
    )
