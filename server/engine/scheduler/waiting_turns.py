"""The turns that wait, in the order in which they will start.

For each class a heap of tenants, the one served least first, and for each tenant a heap of its turns, the one due first
on top. Removing a turn only marks its entry, which is dropped when it comes up; so each operation costs a logarithm,
however many wait.

A turn can be *parked*: it waits for something and does not stand in the order meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ..messages import Priority
from ..sequence import Sequence
from .fair_shares import FairShares
from .urgency import ClassPatience, Urgency

_Turns = list[tuple[float, int, Sequence]]  # a heap by due time and order of arrival


class WaitingTurns:
    """Alone owns the order among waiting turns, their deadlines, and what is counted of them."""

    def __init__(self, patience: ClassPatience, shares: list[FairShares]) -> None:
        """``shares``: of each class."""
        self._patience = patience
        self._levels = [_Level(share) for share in shares]
        self._urgency: dict[Sequence, Urgency] = {}  # of all that wait
        self._parked: set[Sequence] = set()
        self._lifts: _Turns = []
        self._deadlines: _Turns = []
        self.num_by_class = [0] * len(Priority)
        self.tokens_by_class = [0] * len(Priority)  # uncached when they began to wait
        self._tokens: dict[Sequence, int] = {}

    def __len__(self) -> int:
        return len(self._urgency)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._urgency)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._urgency

    def urgency(self, sequence: Sequence) -> Urgency:
        """Of a turn that waits."""
        return self._urgency[sequence]

    def add(self, sequence: Sequence, due: float, num_uncached: int, now: float) -> None:
        """Let ``sequence`` wait; ``num_uncached`` of its tokens are to be computed."""
        self._tokens[sequence] = num_uncached
        self.num_by_class[sequence.turn.priority] += 1
        self.tokens_by_class[sequence.turn.priority] += num_uncached
        if sequence.turn.deadline_s is not None:
            expires = sequence.arrival + sequence.turn.deadline_s
            heapq.heappush(self._deadlines, (expires, sequence.order, sequence))
        self._place(sequence, Urgency(self._patience.level(sequence, now), due, sequence.order))

    def remove(self, sequence: Sequence) -> None:
        """``sequence`` waits no longer."""
        urgency = self._urgency.pop(sequence)
        self.num_by_class[sequence.turn.priority] -= 1
        self.tokens_by_class[sequence.turn.priority] -= self._tokens.pop(sequence)
        if sequence in self._parked:
            self._parked.discard(sequence)
        else:
            self._levels[urgency.level].remove(sequence)

    def park(self, sequence: Sequence) -> None:
        """Take ``sequence`` out of the order until ``unpark``; it goes on waiting, and its deadline goes on
        counting."""
        self._levels[self._urgency[sequence].level].remove(sequence)
        self._parked.add(sequence)

    def unpark(self, sequence: Sequence, now: float) -> None:
        """Put ``sequence`` back where it belongs."""
        self._parked.discard(sequence)
        self._place(sequence, self._urgency[sequence]._replace(level=self._patience.level(sequence, now)))

    def first(self) -> Sequence | None:
        """The turn to start next: of the first class that has any, of the tenant served least, the one due first."""
        for level in self._levels:
            sequence = level.first()
            if sequence is not None:
                return sequence
        return None

    def lift(self, now: float) -> None:
        """Move the turns that have waited for long enough to the class above. To be called as time goes by."""
        for sequence in _pop_until(self._lifts, now):
            urgency = self._urgency.get(sequence)
            if urgency is None or sequence in self._parked or self._patience.level(sequence, now) >= urgency.level:
                continue
            self._levels[urgency.level].remove(sequence)
            self._place(sequence, urgency._replace(level=self._patience.level(sequence, now)))

    def expired(self, now: float) -> list[Sequence]:
        """The turns whose deadline has passed while they wait, each once, however often it came to wait."""
        passed = _pop_until(self._deadlines, now)
        return list(dict.fromkeys(sequence for sequence in passed if sequence in self._urgency))

    def served_less(self, tenant: str) -> None:
        """What counts against ``tenant`` went down, so its place among the tenants changes."""
        for level in self._levels:
            level.reconsider(tenant)

    def _place(self, sequence: Sequence, urgency: Urgency) -> None:
        self._urgency[sequence] = urgency
        self._levels[urgency.level].add(sequence, urgency)
        lifted_at = self._patience.lifted_at(sequence, urgency.level)
        if lifted_at != float("inf"):
            heapq.heappush(self._lifts, (lifted_at, sequence.order, sequence))


class _Level:
    """The order among the turns of one class."""

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
        self._due: dict[Sequence, float] = {}  # of the turns that stand here
        self._turns: dict[str, _Turns] = {}  # by tenant; with entries of turns that left
        self._tenants: list[tuple[float, float, str]] = []  # a heap by tokens served and due time; may be out of date
        self._num_left = 0

    def add(self, sequence: Sequence, urgency: Urgency) -> None:
        self._shares.join(sequence.turn.tenant)
        self._due[sequence] = urgency.due
        turns = self._turns.setdefault(sequence.turn.tenant, [])
        heapq.heappush(turns, (urgency.due, urgency.order, sequence))
        if turns[0][2] is sequence:
            self.reconsider(sequence.turn.tenant)

    def remove(self, sequence: Sequence) -> None:
        del self._due[sequence]
        self._shares.leave(sequence.turn.tenant)
        self._num_left += 1
        if self._num_left > len(self._due) + 64:
            self._rebuild()

    def first(self) -> Sequence | None:
        while self._tenants:
            served, due, tenant = self._tenants[0]
            sequence = self._first_of(tenant)
            if sequence is not None and (served, due) == (self._shares.served(tenant), self._due[sequence]):
                return sequence
            heapq.heappop(self._tenants)
            if sequence is not None:
                self.reconsider(tenant)
        return None

    def reconsider(self, tenant: str) -> None:
        sequence = self._first_of(tenant)
        if sequence is not None:
            heapq.heappush(self._tenants, (self._shares.served(tenant), self._due[sequence], tenant))
            if len(self._tenants) > 2 * len(self._turns) + 64:
                self._rebuild()

    def _first_of(self, tenant: str) -> Sequence | None:
        turns = self._turns.get(tenant)
        while turns:
            due, _, sequence = turns[0]
            if self._due.get(sequence) == due:
                return sequence
            heapq.heappop(turns)
            self._num_left -= 1
        self._turns.pop(tenant, None)
        return None

    def _rebuild(self) -> None:
        """Drop the entries of turns that left, so that memory follows those that wait."""
        self._num_left = 0
        self._turns, self._tenants = {}, []
        for sequence, due in self._due.items():
            self._turns.setdefault(sequence.turn.tenant, []).append((due, sequence.order, sequence))
        for turns in self._turns.values():
            heapq.heapify(turns)
        self._tenants = [(self._shares.served(who), turns[0][0], who) for who, turns in self._turns.items()]
        heapq.heapify(self._tenants)


def _pop_until(heap: _Turns, now: float) -> Iterator[Sequence]:
    while heap and heap[0][0] <= now:
        yield heapq.heappop(heap)[2]
