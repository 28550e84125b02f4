"""Transfers beside the step, over a tier whose operations end when the test says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from sessile.sessions.cache.host_tier import HostTier, allocate_slab
from sessile.sessions.cache.tier_io import (
    LoadEnded,
    LoadOverdue,
    LookedUp,
    StoreEnded,
    TierIO,
    TransferEvent,
)
from sessile.sessions.cache.tiers import Entry, LoadOutcome, Tier

HIT, MISS, ERROR = LoadOutcome.HIT, LoadOutcome.MISS, LoadOutcome.ERROR
SIZE = 64


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Gated(HostTier):
    """A host tier that calls itself SHARED and whose operations wait for ``gate``, or raise."""

    def __init__(self) -> None:
        super().__init__(allocate_slab(8 * SIZE, SIZE))
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.raises = False
        self.closed = False

    @property
    def tier(self) -> Tier:
        return Tier.SHARED

    def enter(self) -> None:
        self.entered.set()
        self.gate.wait(60)
        if self.raises:
            raise RuntimeError("a bug")

    def load(self, entries: Sequence[Entry], deadline: float) -> list[LoadOutcome]:
        self.enter()
        return super().load(entries, deadline)

    def store(self, entries: Sequence[Entry]) -> list[bool]:
        self.enter()
        return super().store(entries)

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        self.enter()
        return super().contains(keys)

    def close(self) -> None:
        self.closed = True
        super().close()


class Driven:
    def __init__(self) -> None:
        self.clock = Clock()
        self.slow, self.host = Gated(), HostTier(allocate_slab(8 * SIZE, SIZE))
        self.woken = 0
        self.io = TierIO([self.host, self.slow], self.wake, self.clock)

    def wake(self) -> None:
        self.woken += 1

    def events(self, count: int) -> list[TransferEvent]:
        """Poll until ``count`` events came."""
        found: list[TransferEvent] = []
        limit = time.monotonic() + 30
        while len(found) < count:
            assert time.monotonic() < limit, found
            found += self.io.poll()
        return found


@pytest.fixture
def driven() -> Iterator[Driven]:
    one = Driven()
    yield one
    one.slow.gate.set()
    one.io.close()
    assert one.slow.closed


def entry(number: int, fill: int = 0) -> Entry:
    return Entry(bytes([number]) * 32, (np.full(SIZE, fill, np.uint8),))


def test_store_look_up_and_load(driven: Driven):
    stored = driven.io.submit_store(Tier.HOST, [entry(1, 7), entry(2, 8)])
    assert driven.events(1) == [StoreEnded(stored, Tier.HOST, (True, True))]
    looked = driven.io.submit_look_up(Tier.HOST, [bytes([2]) * 32, bytes([3]) * 32])
    assert driven.events(1) == [LookedUp(looked, Tier.HOST, (True, False))]
    wanted = [entry(2), entry(3)]
    ticket = driven.io.submit_load(Tier.HOST, wanted, driven.clock.now + 1)
    (ended,) = driven.events(1)
    assert isinstance(ended, LoadEnded)
    assert (ended.ticket, ended.outcomes, ended.num_bytes) == (ticket, (HIT, MISS), SIZE)
    assert (wanted[0].blocks[0] == 8).all()
    assert driven.woken == 3
    assert driven.io.num_loads == 0 and driven.io.next_deadline is None


def test_a_tier_that_hangs_delays_no_other(driven: Driven):
    driven.io.submit_load(Tier.SHARED, [entry(1)], driven.clock.now + 5)
    ticket = driven.io.submit_store(Tier.HOST, [entry(1, 7)])
    assert driven.events(1) == [StoreEnded(ticket, Tier.HOST, (True,))]
    assert driven.io.num_loads == 1
    assert driven.io.poll() == []


def test_an_overdue_load_is_said_once_and_ends_later(driven: Driven):
    ticket = driven.io.submit_load(Tier.SHARED, [entry(1)], driven.clock.now + 5)
    assert driven.io.next_deadline == driven.clock.now + 5
    driven.clock.now += 6
    assert driven.io.poll() == [LoadOverdue(ticket, Tier.SHARED)]
    assert driven.io.poll() == [] and driven.io.next_deadline is None and driven.io.num_loads == 1
    driven.slow.gate.set()
    (ended,) = driven.events(1)
    assert isinstance(ended, LoadEnded) and ended.ticket == ticket
    assert driven.io.num_loads == 0


def test_loads_go_before_stores(driven: Driven):
    first = driven.io.submit_store(Tier.SHARED, [entry(1)])  # under way, waits at the gate
    driven.slow.entered.wait(60)
    second = driven.io.submit_store(Tier.SHARED, [entry(2)])
    load = driven.io.submit_load(Tier.SHARED, [entry(1)], driven.clock.now + 5)
    look_up = driven.io.submit_look_up(Tier.SHARED, [bytes(32)])
    driven.slow.gate.set()
    assert [event.ticket for event in driven.events(4)] == [first, load, look_up, second]


def test_a_tier_that_raises_leaves_nobody_waiting(driven: Driven, caplog: pytest.LogCaptureFixture):
    driven.slow.raises = True
    driven.slow.gate.set()
    load = driven.io.submit_load(Tier.SHARED, [entry(1)], driven.clock.now + 5)
    store = driven.io.submit_store(Tier.SHARED, [entry(1)])
    look_up = driven.io.submit_look_up(Tier.SHARED, [bytes(32)])
    ended = {event.ticket: event for event in driven.events(3)}
    assert ended[load].outcomes == (ERROR,)
    assert ended[store].taken == (False,)
    assert ended[look_up].present == (False,)
    assert "a bug" in caplog.text
    driven.slow.raises = False
