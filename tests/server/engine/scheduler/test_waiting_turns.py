"""The order among waiting turns, against a plain list that is sorted each time."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from simulated import a_sequence

from sessile.server.engine.messages import Priority
from sessile.server.engine.scheduler.fair_shares import FairShares
from sessile.server.engine.scheduler.urgency import ClassPatience
from sessile.server.engine.scheduler.waiting_turns import WaitingTurns

TENANTS = ("a", "b", "c")


class WaitingMachine(RuleBasedStateMachine):
    """The model: a list of [sequence, due, parked], its order computed from scratch."""

    @initialize(background=st.sampled_from([5.0, math.inf]), batch=st.sampled_from([9.0, math.inf]))
    def start(self, background: float, batch: float) -> None:
        self.patience = ClassPatience(background, batch)
        self.shares = [FairShares({}) for _ in Priority]
        self.turns = WaitingTurns(self.patience, self.shares)
        self.model: list[list] = []
        self.now = 0.0
        self.order = 0

    @rule(
        tenant=st.sampled_from(TENANTS),
        priority=st.sampled_from(Priority),
        patience=st.integers(0, 9),
        deadline_s=st.sampled_from([None, 3.0]),
    )
    def add(self, tenant: str, priority: Priority, patience: int, deadline_s: float | None) -> None:
        sequence = a_sequence(self.order, tenant=tenant, priority=priority, arrival=self.now, deadline_s=deadline_s)
        self.order += 1
        self.turns.add(sequence, self.now + patience, 10, self.now)
        self.model.append([sequence, self.now + patience, False])

    @rule(place=st.integers(0, 30))
    def remove(self, place: int) -> None:
        if self.model:
            sequence = self.model.pop(place % len(self.model))[0]
            self.turns.remove(sequence)

    @rule(place=st.integers(0, 30))
    def leave_and_come_back(self, place: int) -> None:
        """As a turn does that started and was preempted."""
        if self.model:
            entry = self.model[place % len(self.model)]
            self.turns.remove(entry[0])
            self.turns.add(entry[0], entry[1], 10, self.now)
            entry[2] = False

    @rule(place=st.integers(0, 30))
    def park_or_unpark(self, place: int) -> None:
        if self.model:
            entry = self.model[place % len(self.model)]
            entry[2] = not entry[2]
            if entry[2]:
                self.turns.park(entry[0])
            else:
                self.turns.unpark(entry[0], self.now)

    @rule(tenant=st.sampled_from(TENANTS), level=st.sampled_from(Priority), tokens=st.integers(-5, 20))
    def charge(self, tenant: str, level: Priority, tokens: int) -> None:
        self.shares[level].charge(tenant, tokens)
        if tokens < 0:
            self.turns.served_less(tenant)

    @rule(seconds=st.integers(0, 4))
    def time_goes_by(self, seconds: int) -> None:
        self.now += seconds
        self.turns.lift(self.now)
        expired = self.turns.expired(self.now)
        late = [s for s, _, _ in self.model if s.turn.deadline_s is not None and s.arrival + 3.0 <= self.now]
        assert sorted(s.order for s in expired) == sorted(s.order for s in late)
        for sequence in expired:
            self.remove(next(i for i, entry in enumerate(self.model) if entry[0] is sequence))

    @invariant()
    def the_first_is_the_first(self) -> None:
        if not hasattr(self, "model"):
            return
        standing = [(s, due) for s, due, parked in self.model if not parked]
        first = self.turns.first()
        if not standing:
            assert first is None
            return
        level = min(self.patience.level(s, self.now) for s, _ in standing)
        here = [(s, due) for s, due in standing if self.patience.level(s, self.now) == level]
        served = min(self.shares[level].served(s.turn.tenant) for s, _ in here)
        assert first is not None
        assert self.patience.level(first, self.now) == level
        assert self.shares[level].served(first.turn.tenant) == served
        own = [(due, s.order) for s, due in here if s.turn.tenant == first.turn.tenant]
        assert first.order == min(own)[1]

    @invariant()
    def all_are_counted(self) -> None:
        if hasattr(self, "model"):
            assert len(self.turns) == len(self.model)
            for priority in Priority:
                count = sum(s.turn.priority is priority for s, _, _ in self.model)
                assert self.turns.num_by_class[priority] == count
                assert self.turns.tokens_by_class[priority] == 10 * count


TestWaitingTurns = WaitingMachine.TestCase
TestWaitingTurns.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_what_left_is_forgotten() -> None:
    """Thousands come and go behind one that stays: the heaps follow those that wait, not those that ever did."""
    shares = [FairShares({}) for _ in Priority]
    turns = WaitingTurns(ClassPatience(math.inf, math.inf), shares)
    stays = a_sequence(0)
    turns.add(stays, 0.0, 1, 0.0)
    for order in range(1, 3000):
        sequence = a_sequence(order, tenant=str(order % 700))
        turns.add(sequence, 1.0, 1, 0.0)
        turns.remove(sequence)
    level = turns._levels[0]
    assert sum(map(len, level._turns.values())) < 200 and len(level._tenants) < 500
    assert turns.first() is stays


def test_a_turn_that_came_back_to_wait_expires_once() -> None:
    """A turn that was preempted stood in the list of deadlines twice, and its second end took the engine down."""
    turns = WaitingTurns(ClassPatience(math.inf, math.inf), [FairShares({}) for _ in Priority])
    sequence = a_sequence(0, deadline_s=3.0)
    for _ in range(2):
        turns.add(sequence, 0.0, 1, 0.0)
        turns.remove(sequence)
    turns.add(sequence, 0.0, 1, 0.0)
    assert turns.expired(5.0) == [sequence]
