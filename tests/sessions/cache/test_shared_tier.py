"""The shared tier over a store in memory that hangs, fails, lies and comes back on command."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from memory_store import MemoryStore
from waiting import wait_until

from sessile.sessions.cache.object_trailer import TRAILER_BYTES, is_sealed, seal
from sessile.sessions.cache.shared_config import SharedConfig, pack
from sessile.sessions.cache.shared_tier import SharedTier
from sessile.sessions.cache.tiers import Block, Entry, LoadOutcome, Tier

HIT, MISS, CORRUPT, LATE = LoadOutcome.HIT, LoadOutcome.MISS, LoadOutcome.CORRUPT, LoadOutcome.LATE
BLOCK_BYTES, PER_OBJECT = 256, 4
OBJECT_BYTES = BLOCK_BYTES * PER_OBJECT + TRAILER_BYTES
PATIENCE_S = 0.15


class Clock:
    """The real clock plus what it is moved by."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def key_of(number: int) -> bytes:
    return number.to_bytes(32, "little")


def content_of(number: int) -> list[Block]:
    rng = np.random.default_rng(number)
    return [rng.integers(0, 256, BLOCK_BYTES, dtype=np.uint8) for _ in range(PER_OBJECT)]


class Shared:
    """A tier over a fake store, and the plain way to use it."""

    def __init__(self, objects: dict[bytes, bytes], slots: int = 8, connects: bool = True) -> None:
        self.store_made: MemoryStore | None = None
        self.connects = connects
        self.clock = Clock()
        self.objects = objects
        config = SharedConfig(
            adapter={},
            object_bytes=PER_OBJECT * BLOCK_BYTES,
            staging_bytes=slots * OBJECT_BYTES,
            patience_s=PATIENCE_S,
        )
        self.tier = SharedTier(self.connect, config, BLOCK_BYTES, self.clock)
        if connects:
            wait_until(lambda: not self.tier.stats().unavailable)

    def connect(self) -> MemoryStore:
        if not self.connects:
            raise OSError("connection refused")
        self.store_made = MemoryStore(self.objects)
        return self.store_made

    @property
    def fake(self) -> MemoryStore:
        assert self.store_made is not None
        return self.store_made

    def offer(self, *numbers: int) -> list[bool]:
        return self.tier.store([Entry(key_of(n), tuple(content_of(n))) for n in numbers])

    def store(self, *numbers: int) -> list[bool]:
        taken = self.offer(*numbers)
        self.tier.sync()
        return taken

    def load(self, *numbers: int, within_s: float = 30.0) -> list[LoadOutcome]:
        entries = [
            Entry(key_of(n), tuple(np.full(BLOCK_BYTES, 9, np.uint8) for _ in range(PER_OBJECT))) for n in numbers
        ]
        outcomes = self.tier.load(entries, self.clock() + within_s)
        for number, entry, outcome in zip(numbers, entries, outcomes, strict=True):
            same = all((a == b).all() for a, b in zip(entry.blocks, content_of(number), strict=True))
            assert same == (outcome is HIT)
            assert outcome is HIT or all((block == 9).all() for block in entry.blocks), "a miss wrote to the blocks"
        return outcomes


@pytest.fixture
def make_shared() -> Iterator[Callable[..., Shared]]:
    made: list[Shared] = []

    def make(objects: dict[bytes, bytes] | None = None, **options: object) -> Shared:
        made.append(Shared({} if objects is None else objects, **options))
        return made[-1]

    yield make
    for shared in made:
        shared.tier.close()
        assert shared.store_made is None or shared.store_made.closed


def test_round_trip_of_more_objects_than_fit_the_staging_memory(make_shared):
    shared = make_shared(slots=4)
    assert (shared.tier.tier, shared.tier.blocks_per_entry, shared.tier.answers_at_once) == (Tier.SHARED, 4, False)
    for number in range(20):
        assert shared.store(number) == [True]
    assert shared.load(*range(20), 99) == [HIT] * 20 + [MISS]
    assert shared.tier.contains([key_of(3), key_of(99)]) == [True, False]
    stats = shared.tier.stats()
    assert (stats.hits, stats.misses, stats.stored, stats.late, stats.errors) == (20, 1, 20, 0, 0)
    assert stats.read_bytes == stats.written_bytes == 20 * PER_OBJECT * BLOCK_BYTES


def test_another_server_loads_what_this_one_stored(make_shared):
    objects: dict[bytes, bytes] = {}
    make_shared(objects).store(1, 2)
    assert make_shared(objects).load(1, 2, 3) == [HIT, HIT, MISS]


@pytest.mark.parametrize("bit", [0, 1000, 8 * 1024, 8 * 1024 + 70, 8 * OBJECT_BYTES - 1])
def test_a_flipped_bit_anywhere(make_shared, bit: int):
    shared = make_shared()
    shared.store(1, 2)
    content = bytearray(shared.objects[key_of(1)])
    content[bit // 8] ^= 1 << bit % 8
    shared.objects[key_of(1)] = bytes(content)
    assert shared.load(1, 2) == [CORRUPT, HIT]
    assert shared.tier.stats().corrupt == 1


def test_another_object_under_the_key_and_objects_of_other_sizes(make_shared):
    shared = make_shared()
    shared.store(1, 2, 3)
    shared.objects[key_of(1)] = shared.objects[key_of(2)]
    shared.objects[key_of(3)] = shared.objects[key_of(3)][: OBJECT_BYTES // 2]
    assert shared.load(1, 2, 3) == [CORRUPT, HIT, CORRUPT]


def test_a_store_that_hangs_is_late_and_its_slots_stay_untouched(make_shared):
    """LMCache #3855: retrieve deadlocks; a slot that the adapter still writes to must not be given to another."""
    shared = make_shared(slots=4)
    shared.store(1)
    shared.fake.hangs = True
    assert shared.load(1, 2, within_s=0.05) == [LATE, LATE]
    assert shared.tier.num_quarantined == 2
    assert shared.tier.stats().late == 2
    shared.fake.hangs = False
    os.eventfd_write(shared.fake.event, 1)
    wait_until(lambda: shared.tier.num_quarantined == 0)
    assert shared.load(1) == [HIT]


def test_a_store_that_hangs_is_left_alone_until_it_answers(make_shared):
    shared = make_shared()
    shared.store(1)
    shared.fake.hangs = True
    for _ in range(3):
        assert shared.load(1, within_s=0.01) == [LATE]
    shared.clock.ahead += 10 * PATIENCE_S
    wait_until(lambda: bool(shared.tier.stats().unavailable))
    assert "no answer" in shared.tier.stats().unavailable
    submitted = shared.fake.number
    assert shared.load(1, 2) == [MISS, MISS]
    assert shared.offer(5) == [False]
    assert shared.tier.contains([key_of(1)]) == [False]
    assert shared.fake.number == submitted
    shared.fake.hangs = False
    os.eventfd_write(shared.fake.event, 1)
    wait_until(lambda: shared.tier.num_quarantined == 0)
    shared.clock.ahead += 1000
    assert shared.load(1) == [HIT]
    assert shared.tier.stats().unavailable == ""


def test_loads_have_slots_while_stores_hang(make_shared):
    shared = make_shared(slots=4)
    shared.store(1)
    shared.fake.hangs = True
    assert shared.offer(2, 3, 4, 5) == [True, True, False, False]
    shared.fake.hangs = False
    assert shared.load(1) == [HIT]
    shared.tier.sync()
    assert shared.load(2, 3, 4) == [HIT, HIT, MISS]


@pytest.mark.parametrize("how", ["refuses", "fails"])
def test_a_store_that_fails(make_shared, how: str):
    shared = make_shared()
    shared.store(1)
    setattr(shared.fake, how, True)
    for number in range(10, 13):
        shared.store(number)
    assert shared.tier.stats().errors == 3
    assert shared.tier.stats().unavailable
    assert shared.load(1) == [MISS], "left alone"
    setattr(shared.fake, how, False)
    shared.clock.ahead += 1000
    assert shared.load(1, 10) == [HIT, MISS]


def test_a_store_that_cannot_be_reached_at_start(make_shared):
    shared = make_shared(connects=False)
    wait_until(lambda: shared.tier.stats().errors > 0)
    assert "connection refused" in shared.tier.stats().unavailable
    assert shared.load(1) == [MISS]
    assert shared.store(1) == [False]
    shared.connects = True
    shared.clock.ahead += 1000
    wait_until(lambda: not shared.tier.stats().unavailable)
    assert shared.store(1) == [True]
    assert shared.load(1) == [HIT]


def test_a_deadline_that_has_passed(make_shared):
    shared = make_shared()
    shared.store(1)
    assert shared.load(1, within_s=-1.0) == [LATE]
    wait_until(lambda: shared.tier.num_quarantined == 0)
    assert shared.load(1) == [HIT]


def test_trailer():
    slot = np.arange(128, dtype=np.uint8)
    seal(slot, key_of(1), 4)
    assert is_sealed(slot, key_of(1), 4)
    assert not is_sealed(slot, key_of(2), 4)
    assert not is_sealed(slot, key_of(1), 2), "as many bytes, but of blocks of another size"
    for byte in range(128):
        slot[byte] ^= 1
        assert not is_sealed(slot, key_of(1), 4)
        slot[byte] ^= 1


def test_blocks_to_an_object():
    mib = 2**20
    assert [pack(size, 2 * mib) for size in (368_640, mib, 2 * mib, 2 * mib + 1, 50 * mib)] == [4, 2, 1, 1, 1]
