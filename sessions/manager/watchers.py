"""Hands events to those who watch. A slow watcher loses events and is told how many; it slows nobody."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator

from ..errors import CapacityError, Draining
from .events import EventsLost, Happening, SessionEvent, WatchStarted
from .ports import Clock

MAX_WATCHERS = 1_000
MAX_UNREAD = 1_000  # events of one watcher
MAX_KNOWN_SESSIONS = 100_000  # whose tenant is remembered


class _Watcher:
    """One watcher's unread events."""

    def __init__(self, tenant: str, session_id: str | None) -> None:
        self._tenant = tenant
        self._session_id = session_id
        self._unread: deque[SessionEvent] = deque()
        self._lost: int | None = None  # events, 0 of an unknown number; None: none
        self._wake = asyncio.Event()
        self.ended = False

    def concerns(self, tenant: str, session_id: str) -> bool:
        return tenant == self._tenant and self._session_id in (None, session_id)

    def offer(self, event: SessionEvent) -> None:
        """Add an event, or count it as lost. What was lost stands where it was: between what was told."""
        if len(self._unread) >= MAX_UNREAD:
            self.lose(1)
            return
        if self._lost is not None:
            self._unread.append(SessionEvent(at=event.at, what=EventsLost(events=self._lost)))
            self._lost = None
        self._unread.append(event)
        self._wake.set()

    def lose(self, events: int) -> None:
        self._lost = (self._lost or 0) + events
        self._wake.set()

    def end(self) -> None:
        self.ended = True
        self._wake.set()

    async def next(self, clock: Clock) -> SessionEvent | None:
        """The oldest unread event; None at the end."""
        while True:
            if self._unread:
                return self._unread.popleft()
            if self._lost is not None:
                lost, self._lost = self._lost, None
                return SessionEvent(at=clock(), what=EventsLost(events=lost))
            if self.ended:
                return None
            self._wake.clear()
            await self._wake.wait()


class Watchers:
    """All watchers, for one event loop. Publishing never waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watchers: set[_Watcher] = set()
        self._tenants: OrderedDict[str, str] = OrderedDict()
        self._closed = False

    @property
    def any(self) -> bool:
        """Whether anyone watches."""
        return bool(self._watchers)

    def publish(self, tenant: str, session_id: str, what: Happening) -> None:
        """Something happened in a session of ``tenant``."""
        self._remember(session_id, tenant)
        event = SessionEvent(at=self._clock(), what=what, session_id=session_id)
        for watcher in self._watchers:
            if watcher.concerns(tenant, session_id):
                watcher.offer(event)

    def publish_of(self, session_id: str, what: Happening, at: float) -> None:
        """Something happened in a session, by its id alone; told only where its tenant is known."""
        tenant = self._tenants.get(session_id)
        if tenant is None:
            return
        event = SessionEvent(at=at, what=what, session_id=session_id)
        for watcher in self._watchers:
            if watcher.concerns(tenant, session_id):
                watcher.offer(event)

    def lose(self, events: int) -> None:
        """Events, 0 of an unknown number, were lost before it was known whom they concern: everyone is told."""
        for watcher in self._watchers:
            watcher.lose(events)

    async def watch(self, tenant: str, session_id: str | None) -> AsyncGenerator[SessionEvent, None]:
        """Events from now on, until ``close``; the first says that it began.

        Raises:
            Draining: the server shuts down.
            CapacityError: there are too many watchers.
        """
        if self._closed:
            raise Draining("the server is shutting down", remedy="watch again in a moment", retry_after_s=1.0)
        if len(self._watchers) >= MAX_WATCHERS:
            raise CapacityError(f"{MAX_WATCHERS} watchers are there already", remedy="end one", retry_after_s=5.0)
        watcher = _Watcher(tenant, session_id)
        if session_id is not None:
            self._remember(session_id, tenant)
        self._watchers.add(watcher)
        try:
            yield SessionEvent(at=self._clock(), what=WatchStarted())
            while (event := await watcher.next(self._clock)) is not None:
                yield event
        finally:
            self._watchers.discard(watcher)

    def close(self) -> None:
        """End all watches once they have told what they have."""
        self._closed = True
        for watcher in self._watchers:
            watcher.end()

    def _remember(self, session_id: str, tenant: str) -> None:
        self._tenants[session_id] = tenant
        self._tenants.move_to_end(session_id)
        if len(self._tenants) > MAX_KNOWN_SESSIONS:
            self._tenants.popitem(last=False)
