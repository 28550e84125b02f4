"""The host tier: bits, room, slots in use, and a dict that says what must be there."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sessile.sessions.cache import host_tier
from sessile.sessions.cache.host_tier import HostTier, allocate_slab
from sessile.sessions.cache.lifetime import Lifetime
from sessile.sessions.cache.tiers import Bandwidth, Entry, LoadOutcome, Tier
from sessile.sessions.errors import ConfigError

SIZE, NUM_SLOTS = 64, 5
HIT, MISS = LoadOutcome.HIT, LoadOutcome.MISS


def key_of(number: int) -> bytes:
    return bytes([number]) * 32


def content_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, SIZE, dtype=np.uint8)


def entry_of(number: int) -> Entry:
    return Entry(key_of(number), (content_of(number),))


def load(tier: HostTier, number: int) -> LoadOutcome:
    block = np.zeros(SIZE, np.uint8)
    (outcome,) = tier.load([Entry(key_of(number), (block,))], time.monotonic() + 60)
    assert outcome is MISS or (block == content_of(number)).all()
    return outcome


def tier_with(*numbers: int, **options: object) -> HostTier:
    tier = HostTier(allocate_slab(NUM_SLOTS * SIZE, SIZE), **options)
    assert tier.store([entry_of(n) for n in numbers]) == [True] * len(numbers)
    return tier


def test_round_trip_and_counts():
    tier = tier_with(1, 2)
    assert [load(tier, n) for n in (1, 2, 3)] == [HIT, HIT, MISS]
    assert tier.contains([key_of(2), key_of(3)]) == [True, False]
    stats = tier.stats()
    assert (tier.tier, tier.blocks_per_entry, tier.answers_at_once) == (Tier.HOST, 1, True)
    assert (stats.hits, stats.misses, stats.stored, stats.entries) == (2, 1, 2, 2)
    assert stats.capacity_bytes == NUM_SLOTS * SIZE and stats.used_bytes == 2 * SIZE
    assert stats.read_bandwidth > 0 < stats.write_bandwidth


def test_a_large_load_is_copied_by_two_threads_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_tier, "SHARED_COPY_BYTES", 2 * SIZE)
    tier = tier_with(0, 1, 2, 3)
    blocks = np.zeros((5, SIZE), np.uint8)
    entries = [Entry(key_of(n), (block,)) for n, block in zip((3, 9, 1, 0, 2), blocks, strict=True)]
    assert tier.load(entries, time.monotonic() + 60) == [HIT, MISS, HIT, HIT, HIT]
    for row, number in ((0, 3), (2, 1), (3, 0), (4, 2)):
        assert (blocks[row] == content_of(number)).all()
    stats = tier.stats()
    assert (stats.hits, stats.misses, stats.read_bytes) == (4, 1, 4 * SIZE)
    tier.check_integrity()
    tier.close()


def test_what_must_not_outlive_the_process_says_so_when_it_moves_on() -> None:
    moved: list[tuple[int, Lifetime]] = []
    tier = HostTier(allocate_slab(NUM_SLOTS * SIZE, SIZE), lambda entry: moved.append((entry.key[0], entry.lifetime)))
    private = {n: dataclasses.replace(entry_of(n), lifetime=Lifetime.PROCESS) for n in range(5)}
    tier.store([private[0], private[1], entry_of(2), private[2], private[3]])
    tier.store([entry_of(1)])  # somebody else computed the same, whose may go everywhere
    tier.drop([key_of(3)])
    tier.store([entry_of(3), private[4]])
    tier.store([entry_of(n) for n in range(10, 15)])
    assert dict(moved) == {
        0: Lifetime.PROCESS,
        1: Lifetime.DURABLE,
        2: Lifetime.DURABLE,
        3: Lifetime.DURABLE,
        4: Lifetime.PROCESS,
    }


def test_the_least_recently_used_goes_first_and_moves_on():
    """Demote to the next tier before dropping."""
    moved: list[tuple[bytes, bytes]] = []
    tier = tier_with(0, 1, 2, 3, 4, on_evict=lambda entry: moved.append((entry.key, bytes(entry.blocks[0]))))
    load(tier, 0)
    tier.store([entry_of(1)])  # known: used just now
    tier.store([entry_of(10), entry_of(11)])
    assert moved == [(key_of(n), bytes(content_of(n))) for n in (2, 3)]
    assert [load(tier, n) for n in (0, 1, 2, 3, 4, 10, 11)] == [HIT, HIT, MISS, MISS, HIT, HIT, HIT]
    assert tier.stats().evicted == 2


def test_a_slot_in_use_is_never_given_away():
    tier = tier_with(0, 1, 2, 3, 4)
    slots = tier.acquire([key_of(n) for n in range(5)])
    assert tier.store([entry_of(10)]) == [False]
    assert tier.reserve(1) is None
    tier.drop([key_of(0)])
    assert load(tier, 0) is MISS
    assert tier.store([entry_of(10)]) == [False], "its last user still reads it"
    assert bytes(tier.slab[slots[0]]) == bytes(content_of(0))
    tier.release(slots)
    assert tier.store([entry_of(10)]) == [True]
    assert load(tier, 10) is HIT
    assert tier.stats().rejected == 3
    tier.check_integrity()


def test_copies_that_others_make():
    tier = tier_with(0, 1, 2, 3)
    slots = tier.reserve(2)
    assert slots is not None
    for slot, number in zip(slots, (7, 8), strict=True):
        tier.slab[slot] = content_of(number)
    assert tier.contains([key_of(7)]) == [False], "not there before it is complete"
    tier.commit([key_of(7), key_of(8)], slots)
    assert [load(tier, n) for n in (7, 8, 0)] == [HIT, HIT, MISS]
    again = tier.reserve(1)
    assert again is not None
    tier.commit([key_of(7)], again)
    tier.check_integrity()
    assert tier.stats().entries == 4, "a key that was there keeps its slot"


def test_a_reservation_that_cannot_be_met_takes_nothing():
    tier = tier_with(0)
    slots = tier.acquire([key_of(0)])
    assert tier.reserve(5) is None
    tier.release(slots)
    assert tier.reserve(5) is not None


@pytest.mark.parametrize("capacity", [0, SIZE - 1])
def test_a_size_that_holds_nothing_names_its_key(capacity: int):
    with pytest.raises(ConfigError) as caught:
        allocate_slab(capacity, SIZE)
    assert caught.value.field == "engine.host_memory_bytes"


def test_host_memory_exhausted():
    with pytest.raises(ConfigError, match="the system does not give"):
        allocate_slab(1 << 60, SIZE)


def test_bandwidth_is_of_the_recent_past():
    bandwidth = Bandwidth(memory_s=1.0)
    assert bandwidth.bytes_per_second == 0.0
    for _ in range(100):
        bandwidth.observe(1000, 0.1)
    assert bandwidth.bytes_per_second == pytest.approx(10_000)
    for _ in range(100):
        bandwidth.observe(100, 0.1)
    assert bandwidth.bytes_per_second == pytest.approx(1_000, rel=0.01)
    bandwidth.observe(0, 1.0)
    bandwidth.observe(100, 0.0)
    assert bandwidth.bytes_per_second == pytest.approx(1_000, rel=0.01)


class HostMachine(RuleBasedStateMachine):
    """Against a list: the least recently used first, those in use skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[bytes] = []
        self.tier = HostTier(allocate_slab(NUM_SLOTS * SIZE, SIZE), on_evict=lambda entry: self.moved.append(entry.key))
        self.order: list[int] = []
        self.held: list[tuple[int, int]] = []  # number, slot: acquired
        self.reserved: list[int] = []

    def room(self) -> bool:
        """Make room as the tier should; False if everything is in use."""
        orphans = {slot for number, slot in self.held if number not in self.order}
        if len(self.order) + len(orphans) + len(self.reserved) < NUM_SLOTS:
            return True
        free = [n for n in self.order if n not in [number for number, _ in self.held]]
        if not free:
            return False
        self.order.remove(free[0])
        return True

    @rule(number=st.integers(0, 8))
    def store(self, number: int) -> None:
        (taken,) = self.tier.store([entry_of(number)])
        known = number in self.order
        assert taken == (known or self.room())
        if taken:
            self.order = [n for n in self.order if n != number] + [number]

    @rule(number=st.integers(0, 8))
    def load(self, number: int) -> None:
        assert (load(self.tier, number) is HIT) == (number in self.order)
        if number in self.order:
            self.order = [n for n in self.order if n != number] + [number]

    @rule(number=st.integers(0, 8))
    def acquire(self, number: int) -> None:
        if any(number == held for held, _ in self.held):
            return
        (slot,) = self.tier.acquire([key_of(number)])
        assert (slot is not None) == (number in self.order)
        if slot is not None:
            self.order = [n for n in self.order if n != number] + [number]
            self.held.append((number, slot))

    @precondition(lambda self: bool(self.held))
    @rule()
    def release(self) -> None:
        number, slot = self.held.pop(0)
        assert bytes(self.tier.slab[slot]) == bytes(content_of(number)), "a slot in use was written to"
        self.tier.release([slot])

    @rule()
    def reserve(self) -> None:
        slots = self.tier.reserve(1)
        assert (slots is not None) == self.room()
        self.reserved += slots or []

    @precondition(lambda self: bool(self.reserved))
    @rule(number=st.integers(0, 8))
    def commit(self, number: int) -> None:
        slot = self.reserved.pop()
        self.tier.slab[slot] = content_of(number)
        self.tier.commit([key_of(number)], [slot])
        self.order = [n for n in self.order if n != number] + [number]

    @rule(number=st.integers(0, 8))
    def drop(self, number: int) -> None:
        if any(number == held for held, _ in self.held):
            return
        self.tier.drop([key_of(number)])
        self.order = [n for n in self.order if n != number]

    @invariant()
    def agrees(self) -> None:
        self.tier.check_integrity()
        present = self.tier.contains([key_of(n) for n in range(9)])
        assert [n for n in range(9) if present[n]] == sorted(self.order)


TestHost = HostMachine.TestCase
TestHost.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
