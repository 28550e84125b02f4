"""Transfers between the engine's blocks and the lower tiers, beside the engine's step.

The engine submits and goes on; at each step it asks what ended. One thread a tier, so a store that hangs delays no disk
read; loads go before stores. The blocks of a transfer belong to it until it ended:

    load    -> LoadOverdue at its deadline, if it has not ended: stop waiting, compute; the blocks are still its own
            -> LoadEnded: the blocks are the engine's again
    store   -> StoreEnded: the blocks may change or be freed
    look up -> LookedUp
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NewType, TypeAlias

from .tiers import Entry, LoadOutcome, LowerTier, Tier

logger = logging.getLogger(__name__)

Ticket = NewType("Ticket", int)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadOverdue:
    """The deadline passed. ``LoadEnded`` follows some time."""

    ticket: Ticket
    tier: Tier


@dataclasses.dataclass(frozen=True, slots=True)
class LoadEnded:
    """What became of each entry; ``seconds`` from submission, ``load_s`` of them in the tier."""

    ticket: Ticket
    tier: Tier
    outcomes: tuple[LoadOutcome, ...]
    num_bytes: int  # of the hits
    seconds: float
    load_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class StoreEnded:
    """Which entries the tier took."""

    ticket: Ticket
    tier: Tier
    taken: tuple[bool, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LookedUp:
    """Which keys the tier has."""

    ticket: Ticket
    tier: Tier
    present: tuple[bool, ...]


TransferEvent: TypeAlias = LoadOverdue | LoadEnded | StoreEnded | LookedUp


@dataclasses.dataclass(slots=True)
class _Load:
    ticket: Ticket
    tier: Tier
    entries: Sequence[Entry]
    deadline: float
    submitted: float
    overdue: bool = False


class TierIO:
    """Drives lower tiers from threads of its own. ``submit_…`` and ``poll`` are the step's, and never wait.

    ``wake`` is called, from any thread, when ``poll`` has something to say.
    """

    def __init__(
        self,
        tiers: Sequence[LowerTier],
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wake = wake
        self._clock = clock
        self._tickets = itertools.count(1)
        self._events: deque[TransferEvent] = deque()
        self._loads: dict[Ticket, _Load] = {}  # not ended; the step's alone
        self._workers = {tier.tier: _Worker(tier) for tier in tiers}

    def submit_load(self, tier: Tier, entries: Sequence[Entry], deadline: float) -> Ticket:
        """Fill the blocks of ``entries`` by ``deadline`` (on the clock of ``time.monotonic``)."""
        load = _Load(self._ticket(), tier, entries, deadline, self._clock())
        self._loads[load.ticket] = load
        self._workers[tier].urgent(lambda source: self._load(source, load))
        return load.ticket

    def submit_store(self, tier: Tier, entries: Sequence[Entry]) -> Ticket:
        """Keep copies of ``entries`` in ``tier``."""
        ticket = self._ticket()
        self._workers[tier].later(lambda target: self._store(target, ticket, entries))
        return ticket

    def submit_look_up(self, tier: Tier, keys: Sequence[bytes]) -> Ticket:
        """Ask a tier that does not answer at once which of ``keys`` it has."""
        ticket = self._ticket()
        self._workers[tier].urgent(lambda source: self._look_up(source, ticket, keys))
        return ticket

    def poll(self) -> list[TransferEvent]:
        """What happened since the last call, in order."""
        events: list[TransferEvent] = []
        while self._events:
            event = self._events.popleft()
            if isinstance(event, LoadEnded):
                del self._loads[event.ticket]
            events.append(event)
        now = self._clock()
        for load in self._loads.values():
            if not load.overdue and now >= load.deadline:
                load.overdue = True
                events.append(LoadOverdue(load.ticket, load.tier))
        return events

    @property
    def next_deadline(self) -> float | None:
        """When ``poll`` has something to say at the latest; None: nothing is waited for."""
        return min((load.deadline for load in self._loads.values() if not load.overdue), default=None)

    @property
    def num_loads(self) -> int:
        """Loads that have not ended."""
        return len(self._loads)

    def close(self, timeout_s: float = 10.0) -> None:
        """Finish what was submitted and close the tiers. What a tier does not finish in time is left behind."""
        for worker in self._workers.values():
            worker.finish()
        limit = time.monotonic() + timeout_s
        for worker in self._workers.values():
            worker.join(max(0.0, limit - time.monotonic()))

    # -- on the workers' threads ------------------------------------------------------------------------------------

    def _load(self, tier: LowerTier, load: _Load) -> None:
        started = self._clock()
        outcomes = [LoadOutcome.ERROR] * len(load.entries)
        try:
            outcomes = tier.load(load.entries, load.deadline)
        finally:
            hits = [e.num_bytes for e, o in zip(load.entries, outcomes, strict=True) if o is LoadOutcome.HIT]
            now = self._clock()
            ended = LoadEnded(load.ticket, load.tier, tuple(outcomes), sum(hits), now - load.submitted, now - started)
            self._tell(ended)

    def _store(self, tier: LowerTier, ticket: Ticket, entries: Sequence[Entry]) -> None:
        taken = [False] * len(entries)
        try:
            taken = tier.store(entries)
        finally:
            self._tell(StoreEnded(ticket, tier.tier, tuple(taken)))

    def _look_up(self, tier: LowerTier, ticket: Ticket, keys: Sequence[bytes]) -> None:
        present = [False] * len(keys)
        try:
            present = tier.contains(keys)
        finally:
            self._tell(LookedUp(ticket, tier.tier, tuple(present)))

    def _tell(self, event: TransferEvent) -> None:
        self._events.append(event)
        self._wake()

    def _ticket(self) -> Ticket:
        return Ticket(next(self._tickets))


class _Worker:
    """One tier's thread: urgent jobs first, each kind in order."""

    def __init__(self, tier: LowerTier) -> None:
        self._tier = tier
        self._urgent: deque[Callable[[LowerTier], None]] = deque()
        self._later: deque[Callable[[LowerTier], None]] = deque()
        self._changed = threading.Condition()
        self._finishing = False
        self._thread = threading.Thread(target=self._run, name=f"tier-{tier.tier}", daemon=True)
        self._thread.start()

    def urgent(self, job: Callable[[LowerTier], None]) -> None:
        with self._changed:
            self._urgent.append(job)
            self._changed.notify()

    def later(self, job: Callable[[LowerTier], None]) -> None:
        with self._changed:
            self._later.append(job)
            self._changed.notify()

    def finish(self) -> None:
        """Do what is submitted, close the tier and leave."""
        with self._changed:
            self._finishing = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _next(self) -> Callable[[LowerTier], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._urgent or self._later or self._finishing)
            if self._urgent:
                return self._urgent.popleft()
            return self._later.popleft() if self._later else None

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                job(self._tier)
            except Exception:  # a tier that breaks its promise not to raise must not leave the others' turns waiting
                logger.exception("the %s tier raised, which it must not", self._tier.tier)
        self._tier.close()
