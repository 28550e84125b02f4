"""What all tiers below the device tier have in common.

A lower tier keeps the bytes of blocks under their content keys. It is a cache of things that can be computed again, so
it never raises for what the world does to it: a full disk, a lost server, a flipped bit or a passed deadline is a miss
that is counted. It raises when it is made, if its configuration can never work.

Who may call what:

    contains, store, drop, stats      any thread, the engine's step included, where ``answers_at_once`` is True:
                                      they take a lock for microseconds and never wait for a device or a network
    load, sync, close                 an I/O thread: they wait for the device

``store`` copies the bytes before it returns: the caller may reuse its buffers at once. ``load`` writes into the
caller's buffers; what a buffer holds after an outcome other than ``HIT`` is undefined. A block whose load is ``LATE``
is still never written to after ``load`` returned.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from .lifetime import Lifetime

Block: TypeAlias = npt.NDArray[np.uint8]
"""One block's KV: ``[block_bytes]`` uint8, contiguous; most often a view of a row of a pool."""


class Tier(enum.StrEnum):
    """Where the KV of a block is, the fastest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    SHARED = "shared"


class LoadOutcome(enum.Enum):
    """What became of one entry of a load. All but ``HIT`` mean: compute it."""

    HIT = enum.auto()
    MISS = enum.auto()  # not there
    CORRUPT = enum.auto()  # there, but not the bytes that were stored; dropped
    ERROR = enum.auto()  # the device or the network failed
    LATE = enum.auto()  # not done by the deadline


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What a tier keeps under one key: ``blocks_per_entry`` consecutive blocks of a path.

    ``key`` is the content key of the last of them, which names the others too (see ``keys``). ``tenant``: whose quota a
    store counts against, where there is one; a load does not need it. ``lifetime``: a tier that outlives the process
    is never given what may not.
    """

    key: bytes
    blocks: tuple[Block, ...]
    tenant: str = ""
    lifetime: Lifetime = Lifetime.DURABLE

    @property
    def num_bytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)


@dataclasses.dataclass(frozen=True, slots=True)
class TierStats:
    """Counts since the start, and the state now. Bandwidths are of the recent past, in bytes a second; 0: unknown."""

    capacity_bytes: int  # 0: unbounded or unknown
    used_bytes: int
    entries: int
    hits: int = 0
    misses: int = 0
    corrupt: int = 0
    errors: int = 0
    late: int = 0
    stored: int = 0
    rejected: int = 0  # stores not taken: queue full, tier full of entries in use, or not available
    evicted: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    read_bandwidth: float = 0.0
    write_bandwidth: float = 0.0
    unavailable: str = ""  # why the tier answers nothing at the moment; empty when it works


class LowerTier(Protocol):
    """HOST, DISK or SHARED. See the module's docstring for threads and failures."""

    @property
    def tier(self) -> Tier: ...

    @property
    def blocks_per_entry(self) -> int:
        """Consecutive blocks under one key. Entry ``i`` of a path holds its blocks ``i * n .. (i + 1) * n - 1``."""
        ...

    @property
    def answers_at_once(self) -> bool:
        """Whether ``contains``, ``store``, ``drop`` and ``stats`` may be called where nothing may wait."""
        ...

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Which keys a load would probably find. Counts nothing, changes no order of eviction."""
        ...

    def store(self, entries: Sequence[Entry]) -> list[bool]:
        """Keep copies of ``entries``; for each, whether it was taken (or is there already)."""
        ...

    def load(self, entries: Sequence[Entry], deadline: float) -> list[LoadOutcome]:
        """Fill the blocks of ``entries``. ``deadline``: on the clock of ``time.monotonic``, in seconds."""
        ...

    def drop(self, keys: Sequence[bytes]) -> None:
        """Forget ``keys``."""
        ...

    def stats(self) -> TierStats: ...

    def forget_counts(self) -> None:
        """Blocks that were stored and loaded to measure the tier are no use of it: count from here on."""
        ...

    def sync(self) -> None:
        """Return once all that was taken is as durable as the tier can make it, or is lost and counted."""
        ...

    def close(self) -> None:
        """Sync, then give up all that is held. Nothing else may be called afterwards."""
        ...


class Bandwidth:
    """Bytes a second of the recent past: an average over transfers, weighted by their time, that forgets.

    After ``memory_s`` seconds of transfers an observation has lost two thirds of its weight. Not safe for threads.
    """

    def __init__(self, memory_s: float = 10.0) -> None:
        self._memory_s = memory_s
        self._bytes = 0.0
        self._seconds = 0.0

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Note a transfer of ``num_bytes`` in ``seconds``."""
        if num_bytes <= 0 or seconds <= 0:
            return
        kept = self._memory_s / (self._memory_s + seconds)
        self._bytes = self._bytes * kept + num_bytes
        self._seconds = self._seconds * kept + seconds

    @property
    def bytes_per_second(self) -> float:
        return self._bytes / self._seconds if self._seconds else 0.0
