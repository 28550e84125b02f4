"""Prompt tokens by where they came from: of the server, each tenant and each session, now and since the start."""

from __future__ import annotations

import itertools
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from operator import sub
from typing import Generic, TypeVar

import msgspec

from ..engine.messages import AdmittedTurn, MissedTokens, TokensBySource

WINDOWS_S = {"1m": 60.0, "5m": 300.0, "1h": 3600.0}
SLOT_S = 5.0
_COARSE_SLOT_S = 20.0  # of tenants, models and sessions: there are many of them
HISTORY_SLOTS = 60  # that charts show
MAX_TENANTS = 256
MAX_SESSIONS = 10_000
MAX_WINDOWED_SESSIONS = 2_000  # those that ran last have windows too, not only the sum since the start
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
Parts = list[tuple[int, int]]  # place in a sum, what is added there
_NUMBERS = len(_PLAIN) + len(_SOURCES) + len(_CAUSES)


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

    def add_parts(self, fresh: Parts, now: float) -> None:
        """Count what happened at ``now``, which never goes back."""
        number = int(now // self._slot_s)
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


def parts_of(counts: ReuseCounts) -> Parts:
    """What is not 0 in some counts; most of a turn's are."""
    groups = ((counts, _PLAIN), (counts.by_source, _SOURCES), (counts.missed, _CAUSES))
    values = [getattr(group, name) for group, names in groups for name in names]
    return [(place, value) for place, value in enumerate(values) if value]


class _Sum:
    """Counts that are added to in place, in 200 bytes."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values = array("q", bytes(8 * _NUMBERS))

    def add(self, parts: Parts) -> None:
        for place, value in parts:
            self._values[place] += value

    def subtract(self, other: _Sum) -> None:
        self._values = array("q", map(sub, self._values, other._values))

    def counts(self) -> ReuseCounts:
        values = iter(self._values)
        plain = {name: next(values) for name in _PLAIN}
        by_source = TokensBySource(**{name: next(values) for name in _SOURCES})
        return ReuseCounts(
            **plain, by_source=by_source, missed=MissedTokens(**{name: next(values) for name in _CAUSES})
        )


class LatestByName(Generic[_Counted]):
    """A bounded table: what was used least recently makes room, and is counted. ``on_drop`` is told of it."""

    def __init__(
        self, most: int, make: Callable[[], _Counted], on_drop: Callable[[_Counted], None] | None = None
    ) -> None:
        self._most = most
        self._make = make
        self._on_drop = on_drop
        self._items: OrderedDict[str, _Counted] = OrderedDict()
        self.num_dropped = 0

    def __getitem__(self, name: str) -> _Counted:
        """The entry of ``name``, made if need be; it is the latest now."""
        if name not in self._items:
            self._items[name] = self._make()
        self._items.move_to_end(name)
        if len(self._items) > self._most:
            _, dropped = self._items.popitem(last=False)
            self.num_dropped += 1
            if self._on_drop is not None:
                self._on_drop(dropped)
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

    __slots__ = ("_sum", "tenant")

    def __init__(self) -> None:
        self.tenant = ""
        self._sum = _Sum()

    @property
    def counts(self) -> ReuseCounts:
        """Of all its turns since the server's start."""
        return self._sum.counts()

    def add_parts(self, fresh: Parts) -> None:
        """One more turn."""
        self._sum.add(fresh)


class ReuseTable:
    """Alone adds turns up. One asyncio loop uses it; ``clock`` gives seconds that never go back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.total = WindowedCounts()
        self.tenants = LatestByName(MAX_TENANTS, lambda: WindowedCounts(_COARSE_SLOT_S))
        self.models = LatestByName(MAX_TENANTS, lambda: WindowedCounts(_COARSE_SLOT_S))
        self.sessions = LatestByName(MAX_SESSIONS, SessionCounts)
        self._recent_sessions = LatestByName(MAX_WINDOWED_SESSIONS, lambda: WindowedCounts(_COARSE_SLOT_S))

    def add(self, turn: AdmittedTurn, tenant: str, session: str, model: str) -> None:
        """Count a turn that was admitted now. ``session`` empty: it is of none."""
        fresh, now = parts_of(counts_of(turn)), self._clock()
        for windows in (self.total, self.tenants[tenant], self.models[model]):
            windows.add_parts(fresh, now)
        if session:
            of_session = self.sessions[session]
            of_session.tenant = tenant
            of_session.add_parts(fresh)
            self._recent_sessions[session].add_parts(fresh, now)

    def latest_sessions(self, most: int, tenant: str | None = None) -> list[tuple[str, SessionCounts]]:
        """The ``most`` sessions that ran last, the latest first; of one tenant alone where one is named."""
        known = self.sessions.latest(most if tenant is None else len(self.sessions))
        return [(name, of) for name, of in known if tenant in (None, of.tenant)][:most]

    def session_windows(self, session: str) -> dict[str, ReuseCounts]:
        """A session's counts by window. One that ran too long ago to be known has nothing in its windows."""
        of_session, recent = self.sessions.get(session), self._recent_sessions.get(session)
        if of_session is None:
            return {}
        windows = dict.fromkeys(WINDOWS_S, NOTHING) if recent is None else recent.windows(self._clock())
        return {**windows, "start": of_session.counts}
