"""What happens in the cache, kept until the front takes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items

from ...sessions.cache.tiers import Tier
from .cache_messages import CacheEvent, CacheEventKind, CacheEvents

MOST_KEPT = 4096


class CacheEventLog:
    """Alone owns the events that nobody took yet. When there are too many, the newest are dropped and counted."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock`` gives seconds since the epoch."""
        self._clock = clock
        self._events: list[CacheEvent] = []
        self._num_lost = 0

    @property
    def is_empty(self) -> bool:
        return not self._events

    def note(self, kind: CacheEventKind, tier: Tier, tokens: int, owners: Items[str] = (), key: bytes = b"") -> None:
        """``tokens`` tokens that end in the block of ``key``; one event for each owner, or one of nobody's."""
        for owner in owners or ("",):
            if len(self._events) >= MOST_KEPT:
                self._num_lost += 1
                continue
            self._events.append(
                CacheEvent(kind=kind, tier=tier.value, tokens=tokens, owner=owner, key=key, at=self._clock())
            )

    def take(self) -> CacheEvents:
        """What happened since the last call."""
        events = CacheEvents(events=self._events, num_lost=self._num_lost)
        self._events, self._num_lost = [], 0
        return events
