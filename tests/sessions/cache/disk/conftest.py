"""A disk tier on a fresh folder, and blocks with contents that name them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sessile.sessions.cache.disk import DiskConfig, DiskTier
from sessile.sessions.cache.keys import KVFingerprint
from sessile.sessions.cache.tiers import Block, Entry, LoadOutcome

BLOCK_BYTES = 4096
FINGERPRINT = KVFingerprint("w" * 64, "bfloat16", "group16-pair2", 16, BLOCK_BYTES, "neox")


def key_of(number: int) -> bytes:
    return number.to_bytes(4, "little") * 8


def content_of(number: int) -> Block:
    """The bytes that belong to ``key_of(number)``."""
    return np.random.default_rng(number).integers(0, 256, BLOCK_BYTES, dtype=np.uint8)


@dataclasses.dataclass
class Disk:
    """A tier, and the plain way to use it: numbers for keys, contents made from the number."""

    tier: DiskTier
    path: Path

    @property
    def namespace(self) -> Path:
        return next(p for p in self.path.iterdir() if p.is_dir())

    def store(self, *numbers: int) -> list[bool]:
        """Store and wait until it is on the disk."""
        taken = self.offer(*numbers)
        self.tier.sync()
        return taken

    def offer(self, *numbers: int) -> list[bool]:
        return self.tier.store([Entry(key_of(n), (content_of(n),)) for n in numbers])

    def load(self, *numbers: int) -> list[LoadOutcome]:
        """Load; a hit whose bytes are wrong fails the test."""
        blocks = [np.full(BLOCK_BYTES, 0xAA, np.uint8) for _ in numbers]
        entries = [Entry(key_of(n), (block,)) for n, block in zip(numbers, blocks, strict=True)]
        outcomes = self.tier.load(entries, time.monotonic() + 60)
        for number, block, outcome in zip(numbers, blocks, outcomes, strict=True):
            assert outcome is not LoadOutcome.HIT or (block == content_of(number)).all(), f"block {number} is wrong"
        return outcomes

    def known(self, *numbers: int) -> list[int]:
        """Which of ``numbers`` the tier says it has."""
        contained = self.tier.contains([key_of(n) for n in numbers])
        return [n for n, known in zip(numbers, contained, strict=True) if known]

    def found(self, *numbers: int) -> list[int]:
        """Which of ``numbers`` can be loaded."""
        return [n for n, outcome in zip(numbers, self.load(*numbers), strict=True) if outcome is LoadOutcome.HIT]


OpenDisk = Callable[..., Disk]


@pytest.fixture
def open_disk(tmp_path: Path) -> Iterator[OpenDisk]:
    """Opens the disk tier in ``tmp_path / "kv"``; keyword arguments change its configuration."""
    opened: list[DiskTier] = []

    def open_it(
        path: Path | None = None,
        fingerprint: KVFingerprint = FINGERPRINT,
        clock: Callable[[], float] = time.monotonic,
        num_slots: int = 16,
        queue_slots: int = 16,
        slots_per_segment: int = 5,
    ) -> Disk:
        path = path or tmp_path / "kv"
        size = fingerprint.block_bytes
        config = DiskConfig(
            path=str(path),
            quota_bytes=num_slots * size,
            write_queue_bytes=queue_slots * size,
            segment_bytes=slots_per_segment * size,
        )
        tier = DiskTier(config, fingerprint, clock)
        opened.append(tier)
        return Disk(tier, path)

    yield open_it
    for tier in opened:
        if not tier.is_closed:
            tier.check_integrity()
            tier.close()


@pytest.fixture
def disk_fingerprint() -> KVFingerprint:
    """The fingerprint that ``open_disk`` uses unless told otherwise."""
    return FINGERPRINT
