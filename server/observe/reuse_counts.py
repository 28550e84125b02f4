"""Prompt tokens by where they came from: of the server, each tenant and each session, now and since the start."""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from ..engine.messages import AdmittedTurn, MissedTokens, TokensBySource

WINDOWS_S = {"1m": 60.0, "5m": 300.0, "1h": 3600.0}
SLOT_S = 5.0
_TENANT_SLOT_S = 20.0  # there are many of them
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
_PLAIN = ("turns", "prompt_tokens", "cached_tokens", "reusable_tokens")
_SOURCES = TokensBySource.__struct_fields__
_CAUSES = MissedTokens.__struct_fields__


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
    """Counts since the start, and of the last hour in slots of ``slot_s`` seconds; a window ends on a border of slots.

    Each window has its sum at any time: what enters is added, what leaves is subtracted, however long the hour was.
    """

    def __init__(self, slot_s: float = SLOT_S) -> None:
        self._slot_s = slot_s
        self._start = _Sum()
        self._windows = {name: (_Sum(), deque[tuple[int, _Sum]]()) for name in WINDOWS_S}  # sum, slots

    @property
    def since_start(self) -> ReuseCounts:
        """Of everything."""
        return self._start.counts()

    def add(self, counts: ReuseCounts, now: float) -> None:
        """Count what happened at ``now``, which never goes back."""
        fresh, number = _Sum.of(counts), int(now // self._slot_s)
        self._start.add(fresh)
        _, hour = self._windows["1h"]
        if not hour or hour[-1][0] != number:
            slot = (number, _Sum())
            for _, slots in self._windows.values():
                slots.append(slot)
        hour[-1][1].add(fresh)  # the newest slot, which all windows have
        for total, _ in self._windows.values():
            total.add(fresh)
        self._forget(now)

    def windows(self, now: float) -> dict[str, ReuseCounts]:
        """Counts by the name of the window."""
        self._forget(now)
        return {**{name: total.counts() for name, (total, _) in self._windows.items()}, "start": self.since_start}

    def history(self, now: float) -> list[ReuseCounts]:
        """One for each of the last ``HISTORY_SLOTS`` slots, oldest first."""
        _, hour = self._windows["1h"]
        latest = dict(itertools.islice(reversed(hour), HISTORY_SLOTS))
        last = int(now // self._slot_s)
        numbers = range(last - HISTORY_SLOTS + 1, last + 1)
        return [latest[number].counts() if number in latest else NOTHING for number in numbers]

    def _forget(self, now: float) -> None:
        for name, (total, slots) in self._windows.items():
            while slots and (slots[0][0] + 1) * self._slot_s <= now - WINDOWS_S[name]:
                total.subtract(slots.popleft()[1])


class _Sum:
    """Counts that are added to in place."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values = [0] * (len(_PLAIN) + len(_SOURCES) + len(_CAUSES))

    @classmethod
    def of(cls, counts: ReuseCounts) -> _Sum:
        made = cls()
        made._values = [
            *(getattr(counts, name) for name in _PLAIN),
            *(getattr(counts.by_source, name) for name in _SOURCES),
            *(getattr(counts.missed, name) for name in _CAUSES),
        ]
        return made

    def add(self, other: _Sum) -> None:
        self._values = [mine + theirs for mine, theirs in zip(self._values, other._values, strict=True)]

    def subtract(self, other: _Sum) -> None:
        self._values = [mine - theirs for mine, theirs in zip(self._values, other._values, strict=True)]

    def counts(self) -> ReuseCounts:
        values = iter(self._values)
        plain = {name: next(values) for name in _PLAIN}
        by_source = TokensBySource(**{name: next(values) for name in _SOURCES})
        return ReuseCounts(
            **plain, by_source=by_source, missed=MissedTokens(**{name: next(values) for name in _CAUSES})
        )


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
        self.tenants = LatestByName(MAX_TENANTS, lambda: WindowedCounts(_TENANT_SLOT_S))
        self.models = LatestByName(MAX_TENANTS, lambda: WindowedCounts(_TENANT_SLOT_S))
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
