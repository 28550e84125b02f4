"""What happens to KV in the cache's tiers: counted, and the end of each session's path followed."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from ..engine.cache_messages import CacheEvent, CacheEventKind, CacheEvents

MAX_EVENTS = 200
_STAYS_ON_DEVICE = (CacheEventKind.STORED, CacheEventKind.LOADED)
_MOVES = (CacheEventKind.DEMOTED, *_STAYS_ON_DEVICE)


class SeenEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event, for people: ``key`` is the beginning of the content key, in hex."""

    kind: str
    tier: str
    tokens: int
    session: str
    key: str
    at: float


class KvEventLog:
    """Alone counts the events. ``on_move``: told of a session and the tier where the end of its KV is now."""

    def __init__(self, on_move: Callable[[str, str], None]) -> None:
        self._on_move = on_move
        self.tokens: Counter[tuple[str, str]] = Counter()  # by kind and tier
        self.num_lost = 0
        self.latest: deque[SeenEvent] = deque(maxlen=MAX_EVENTS)

    async def follow(self, listen: Callable[[], AsyncGenerator[CacheEvents, None]]) -> None:
        """Count until the stream ends, and close it."""
        async with aclosing(listen()) as events:
            async for batch in events:
                self.num_lost += batch.num_lost
                for event in batch.events:
                    self.note(event)

    def note(self, event: CacheEvent) -> None:
        """Count one event."""
        self.tokens[event.kind.value, event.tier] += event.tokens
        self.latest.append(
            SeenEvent(
                kind=event.kind.value,
                tier=event.tier,
                tokens=event.tokens,
                session=event.owner,
                key=event.key[:8].hex(),
                at=event.at,
            )
        )
        if event.owner and event.kind in _MOVES:
            self._on_move(event.owner, "device" if event.kind in _STAYS_ON_DEVICE else event.tier)
