"""The disk tier against a dict: any order of stores, loads, drops, restarts and crashes."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sessile.sessions.cache.disk import DiskConfig, DiskTier
from sessile.sessions.cache.keys import KVFingerprint
from sessile.sessions.cache.tiers import Entry, LoadOutcome

SIZE = 512
NUM_SLOTS = 6
FINGERPRINT = KVFingerprint("w", "bf16", "layout", 16, SIZE, "rope")
NUMBERS = st.integers(0, 11)


def key_of(number: int) -> bytes:
    return bytes([number]) * 32


def content_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, SIZE, dtype=np.uint8)


class DiskMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="sessile-disk-"))
        self.generation = 0
        self.tier = self.open(self.folder / "0")
        self.order: list[int] = []  # what must be there, the least recently used first
        self.maybe: set[int] = set()  # may be there or not: stored but not synced when the process was killed

    def open(self, path: Path) -> DiskTier:
        config = DiskConfig(
            path=str(path), quota_bytes=NUM_SLOTS * SIZE, write_queue_bytes=4 * SIZE, segment_bytes=4 * SIZE
        )
        return DiskTier(config, FINGERPRINT)

    def used(self, number: int) -> None:
        if number in self.order:
            self.order.remove(number)
        self.order.append(number)
        del self.order[:-NUM_SLOTS]

    @rule(number=NUMBERS)
    def store(self, number: int) -> None:
        assert self.tier.store([Entry(key_of(number), (content_of(number),))]) == [True]
        self.tier.sync()
        self.used(number)

    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=4, unique=True))
    def load(self, numbers: list[int]) -> None:
        for number in numbers:  # one after the other, so that the order of use is known
            block = np.zeros(SIZE, np.uint8)
            outcome = self.tier.load([Entry(key_of(number), (block,))], time.monotonic() + 60)[0]
            if outcome is LoadOutcome.HIT:
                assert (block == content_of(number)).all()
                assert number in self.order or number in self.maybe
                if number in self.order:
                    self.used(number)
            else:
                assert number not in self.order or self.maybe
                assert outcome is LoadOutcome.MISS or self.maybe

    @rule(number=NUMBERS)
    def drop(self, number: int) -> None:
        self.tier.drop([key_of(number)])
        if number in self.order:
            self.order.remove(number)
        self.maybe.discard(number)

    @rule()
    def restart(self) -> None:
        self.tier.close()
        self.tier = self.open(self.folder / str(self.generation))

    @precondition(lambda self: not self.maybe)
    @rule(unsynced=st.lists(NUMBERS, max_size=3, unique=True), cut=st.integers(0, 200))
    def crash(self, unsynced: list[int], cut: int) -> None:
        """Go on from a copy that was made while writes may have been under way, its log cut by ``cut`` bytes."""
        self.tier.store([Entry(key_of(number), (content_of(number),)) for number in unsynced])
        old = self.folder / str(self.generation)
        self.generation += 1
        new = self.folder / str(self.generation)
        shutil.copytree(old, new)
        log = next(new.glob("*/index.log"))
        content = log.read_bytes()
        log.write_bytes(content[: max(72, len(content) - cut)])
        self.tier.close()
        self.tier = self.open(new)
        self.maybe = set(range(12))  # a lost record may bring back what it replaced: right bytes, or a miss
        self.order.clear()

    @precondition(lambda self: bool(self.maybe))
    @rule()
    def drop_all(self) -> None:
        self.tier.drop([key_of(number) for number in range(12)])
        self.maybe.clear()
        self.order.clear()

    @invariant()
    def consistent(self) -> None:
        self.tier.check_integrity()
        assert len(self.tier.contains([])) == 0
        if not self.maybe:
            present = self.tier.contains([key_of(number) for number in range(12)])
            assert [n for n in range(12) if present[n]] == sorted(self.order)

    def teardown(self) -> None:
        self.tier.close()
        shutil.rmtree(self.folder)


TestDisk = DiskMachine.TestCase
TestDisk.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
