"""Prompt tokens by where they came from: of the server, each tenant and each session, now and since the start."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from ..engine.messages import AdmittedTurn, MissedTokens, TokensBySource

WINDOWS_S = {"1m": 60.0, "5m": 300.0, "1h": 3600.0}
SLOT_S = 5.0  # a window ends on a border of slots
HISTORY_SLOTS = 60  # that charts show
MAX_TENANTS = 256
MAX_SESSIONS = 10_000
_Counted = TypeVar("_Counted")


class ReuseCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens of some turns. The parts of ``by_source`` sum to ``prompt_tokens``; those of ``missed`` to what was
    reusable and was computed."""

    turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reusable_tokens: int = 0
    by_source: TokensBySource = TokensBySource()
    missed: MissedTokens = MissedTokens()

    def plus(self, other: ReuseCounts) -> ReuseCounts:
        """The sums."""
        return ReuseCounts(
            turns=self.turns + other.turns,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reusable_tokens=self.reusable_tokens + other.reusable_tokens,
            by_source=self.by_source.plus(other.by_source),
            missed=self.missed.plus(other.missed),
        )


NOTHING = ReuseCounts()


def counts_of(turn: AdmittedTurn) -> ReuseCounts:
    """The counts of one turn."""
    return ReuseCounts(
        turns=1,
        prompt_tokens=turn.tokens_by_source.total,
        cached_tokens=turn.tokens_by_source.cached,
        reusable_tokens=turn.reusable_tokens,
        by_source=turn.tokens_by_source,
        missed=turn.missed,
    )


class WindowedCounts:
    """Counts since the start, and of the last hour in slots of a few seconds."""

    def __init__(self) -> None:
        self.since_start = NOTHING
        self._slots: deque[tuple[int, ReuseCounts]] = deque()  # number of the slot, oldest first

    def add(self, counts: ReuseCounts, now: float) -> None:
        """Count what happened at ``now``, which never goes back."""
        self.since_start = self.since_start.plus(counts)
        number = int(now // SLOT_S)
        if self._slots and self._slots[-1][0] == number:
            counts = self._slots.pop()[1].plus(counts)
        self._slots.append((number, counts))
        while _end(self._slots[0][0]) <= now - WINDOWS_S["1h"]:
            self._slots.popleft()

    def windows(self, now: float) -> dict[str, ReuseCounts]:
        """Counts by the name of the window."""
        found = dict.fromkeys(WINDOWS_S, NOTHING)
        for number, counts in self._slots:
            for name, seconds in WINDOWS_S.items():
                if _end(number) > now - seconds:
                    found[name] = found[name].plus(counts)
        return {**found, "start": self.since_start}

    def history(self, now: float) -> list[ReuseCounts]:
        """One for each of the last ``HISTORY_SLOTS`` slots, oldest first."""
        slots = dict(self._slots)
        last = int(now // SLOT_S)
        return [slots.get(number, NOTHING) for number in range(last - HISTORY_SLOTS + 1, last + 1)]


def _end(number: int) -> float:
    """When a slot ends."""
    return (number + 1) * SLOT_S


class LatestByName(Generic[_Counted]):
    """A bounded table: what was used least recently makes room, and is counted."""

    def __init__(self, most: int, make: Callable[[], _Counted]) -> None:
        self._most = most
        self._make = make
        self._items: OrderedDict[str, _Counted] = OrderedDict()
        self.num_dropped = 0

    def __getitem__(self, name: str) -> _Counted:
        """The entry of ``name``, made if need be; it is the latest now."""
        if name not in self._items:
            self._items[name] = self._make()
        self._items.move_to_end(name)
        if len(self._items) > self._most:
            self._items.popitem(last=False)
            self.num_dropped += 1
        return self._items[name]

    def __len__(self) -> int:
        return len(self._items)

    def get(self, name: str) -> _Counted | None:
        """The entry, if there is one; its place does not change."""
        return self._items.get(name)

    def latest(self, most: int) -> list[tuple[str, _Counted]]:
        """The ``most`` entries used last, the latest first."""
        names = list(self._items)[-most:] if most else []
        return [(name, self._items[name]) for name in reversed(names)]


class SessionCounts:
    """Counts of one session since the start, and whose it is."""

    def __init__(self) -> None:
        self.tenant = ""
        self.counts = NOTHING


class ReuseTable:
    """Alone adds turns up. One asyncio loop uses it; ``clock`` gives seconds that never go back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.total = WindowedCounts()
        self.tenants = LatestByName(MAX_TENANTS, WindowedCounts)
        self.models = LatestByName(MAX_TENANTS, WindowedCounts)
        self.sessions = LatestByName(MAX_SESSIONS, SessionCounts)

    def add(self, turn: AdmittedTurn, tenant: str, session: str, model: str) -> None:
        """Count a turn that was admitted now. ``session`` empty: it is of none."""
        counts, now = counts_of(turn), self._clock()
        self.total.add(counts, now)
        self.tenants[tenant].add(counts, now)
        self.models[model].add(counts, now)
        if session:
            of_session = self.sessions[session]
            of_session.tenant = tenant
            of_session.counts = of_session.counts.plus(counts)
