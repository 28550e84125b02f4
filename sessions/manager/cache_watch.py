"""Brings what the engine's cache does to those who watch sessions, while anyone does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from ...server.engine.cache_messages import CacheEvent, CacheEventKind
from ..background import Sleep, keep_doing
from .events import KvMoved, Movement, SessionEvent
from .kv_requests import owner_of
from .ports import EngineCache
from .watchers import Watchers

_MOVEMENTS = {
    CacheEventKind.DEMOTED: Movement.DEMOTED,
    CacheEventKind.LOADED: Movement.LOADED,
    CacheEventKind.EVICTED: Movement.EVICTED,
    CacheEventKind.EXPIRED: Movement.EXPIRED,
}


class CacheWatch:
    """Listens to the engine from the first watcher to the last, over errors too: watchers are told that events are
    missing, and listening begins anew."""

    def __init__(self, engine: EngineCache, watchers: Watchers, sleep: Sleep = asyncio.sleep) -> None:
        self._engine = engine
        self._watchers = watchers
        self._sleep = sleep
        self._listening: asyncio.Task[None] | None = None

    async def watch(self, tenant: str, session_id: str | None) -> AsyncGenerator[SessionEvent, None]:
        """Events from now on; see ``Watchers.watch``."""
        async with contextlib.aclosing(self._watchers.watch(tenant, session_id)) as events:
            try:
                async for event in events:
                    if self._listening is None:
                        self._listening = asyncio.get_running_loop().create_task(
                            keep_doing("watchers do not hear of the cache", self._listen, self._sleep)
                        )
                    yield event
            finally:
                await events.aclose()
                await self._stop_if_unwatched()

    async def _stop_if_unwatched(self) -> None:
        listening = self._listening
        if listening is not None and not self._watchers.any:
            self._listening = None
            listening.cancel()
            await asyncio.wait({listening})

    async def _listen(self) -> None:
        try:
            async with contextlib.aclosing(self._engine.cache_events()) as batches:
                async for batch in batches:
                    if batch.num_lost:
                        self._watchers.lose(batch.num_lost)
                    for event in batch.events:
                        self._tell(event)
        except Exception:
            self._watchers.lose(0)
            raise

    def _tell(self, event: CacheEvent) -> None:
        movement = _MOVEMENTS.get(event.kind)
        if movement is not None and event.owner:
            moved = KvMoved(movement=movement, tokens=event.tokens, tier=event.tier)
            self._watchers.publish_of(owner_of(event.owner), moved, event.at)
