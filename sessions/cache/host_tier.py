"""The host tier: one slab of memory, its own block pool, the least recently used entry goes first.

The slab is ordinary memory, or pinned memory that the engine gives. Copies between device and slab that run
asynchronously use ``reserve`` / ``commit`` and ``acquire`` / ``release`` around them; plain copies use ``store`` and
``load``. A slot that anyone uses is never given away.
"""

from __future__ import annotations

import itertools
import mmap
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from .block_pool import BlockPool
from .lifetime import Lifetime
from .tenant_quota import TenantQuota
from .tiers import Bandwidth, Block, Entry, LoadOutcome, Tier, TierStats

SHARED_COPY_BYTES = 4 * 2**20  # from so many on a second thread takes half of a load

Slab = npt.NDArray[np.uint8]  # [num_slots, block_bytes]


def allocate_slab(capacity_bytes: int, block_bytes: int) -> Slab:
    """Zeroed memory for as many blocks as ``capacity_bytes`` holds: [num_slots, block_bytes].

    Pages are touched only when blocks are written; huge pages are asked for, since the first touch of small ones
    costs more than the copy.

    Raises:
        ConfigError: it does not hold one block, or the system does not give the memory.
    """
    num_slots = capacity_bytes // block_bytes
    if num_slots < 1:
        raise ConfigError(
            f"engine.host_memory_bytes is {capacity_bytes}, one block takes {block_bytes}",
            field="engine.host_memory_bytes",
            remedy="give the host tier more memory, or 0 to do without it",
        )
    try:
        memory = mmap.mmap(-1, num_slots * block_bytes)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"the system does not give {capacity_bytes} bytes for the host tier: {error}",
            field="engine.host_memory_bytes",
            remedy="lower it",
        ) from error
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8).reshape(num_slots, block_bytes)


class HostTier:
    """Alone owns the slab, its pool and the map from keys to slots.

    ``on_evict`` is called with each entry that is given up to make room, before its slot is written again: that is
    where it moves on to the next tier. It must not block, and must not call this tier.
    """

    def __init__(
        self, slab: Slab, on_evict: Callable[[Entry], None] | None = None, quota: TenantQuota[str] | None = None
    ) -> None:
        self._slab = slab
        self._on_evict = on_evict
        self._pool = BlockPool(slab.shape[0])
        self._quota: TenantQuota[str] = quota or TenantQuota()
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # the least recently used first
        self._process_only: set[bytes] = set()  # of these, what must not outlive the process
        self._lock = threading.Lock()
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="host-read")  # its thread starts when it is needed
        self._reading, self._writing = Bandwidth(), Bandwidth()
        self.forget_counts()

    @property
    def tier(self) -> Tier:
        return Tier.HOST

    @property
    def blocks_per_entry(self) -> int:
        return 1

    @property
    def answers_at_once(self) -> bool:
        return True

    @property
    def slab(self) -> Slab:
        """The memory, for whoever copies to reserved and from acquired slots: [num_slots, block_bytes]."""
        return self._slab

    # -- copies that the tier makes -------------------------------------------------------------------------------

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        with self._lock:
            return [key in self._slots for key in keys]

    def store(self, entries: Sequence[Entry]) -> list[bool]:
        """See ``LowerTier``. Entries that are in use make room for nobody: then nothing is taken."""
        taken = []
        for entry in entries:
            with self._lock:
                known = self._touch(entry.key)
                if known:
                    self._note_stored(entry)
                slot = None if known else self._allocate()
                self._rejected += not known and slot is None
            taken.append(known or slot is not None)
            if slot is not None:
                started = time.perf_counter()
                np.copyto(self._slab[slot], entry.blocks[0])
                self._note_write(time.perf_counter() - started)
                if entry.lifetime is Lifetime.PROCESS:
                    self._keep_here(entry.key)
                self.commit([entry.key], [slot])
                with self._lock:
                    self._note_stored(entry)
        return taken

    def load(self, entries: Sequence[Entry], deadline: float) -> list[LoadOutcome]:
        """See ``LowerTier``. One core does not use all of the memory's bandwidth: what is large is copied by two."""
        slots = self.acquire([entry.key for entry in entries])
        copies = [(entry.blocks[0], slot) for entry, slot in zip(entries, slots, strict=True) if slot is not None]
        started = time.perf_counter()
        if len(copies) * self._slab.shape[1] < SHARED_COPY_BYTES:
            self._copy_out(copies)
        else:
            other = self._copier.submit(self._copy_out, copies[1::2])
            self._copy_out(copies[::2])
            other.result()
        self._note_read(len(copies), time.perf_counter() - started)
        self.release([slot for _, slot in copies])
        return [LoadOutcome.MISS if slot is None else LoadOutcome.HIT for slot in slots]

    def _copy_out(self, copies: Sequence[tuple[Block, int]]) -> None:
        for block, slot in copies:
            np.copyto(block, self._slab[slot])

    def drop(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            dropped = [self._slots.pop(key) for key in keys if key in self._slots]
            for key in keys:
                self._gone(key)
            self._pool.release(dropped)

    # -- copies that others make ----------------------------------------------------------------------------------

    def reserve(self, count: int) -> list[int] | None:
        """Take ``count`` slots to copy into, evicting what that takes; None, and no more is taken, if it cannot be.

        Each slot ends with ``commit`` or ``release``.
        """
        slots: list[int] = []
        with self._lock:
            while len(slots) < count:
                slot = self._allocate()
                if slot is None:
                    self._pool.release(slots)
                    self._rejected += count
                    return None
                slots.append(slot)
        return slots

    def commit(self, keys: Sequence[bytes], slots: Sequence[int]) -> None:
        """The reserved ``slots`` now hold the blocks of ``keys``. Where a key is there already, its slot stays."""
        with self._lock:
            for key, slot in zip(keys, slots, strict=True):
                if self._touch(key):
                    self._pool.release([slot])
                else:
                    self._slots[key] = slot
                    self._stored += 1

    def acquire(self, keys: Sequence[bytes]) -> list[int | None]:
        """The slots of ``keys``, kept as they are until ``release``; None where there is none. Counts hits."""
        with self._lock:
            slots = [self._slots.get(key) for key in keys]
            for key, slot in zip(keys, slots, strict=True):
                if slot is not None:
                    self._touch(key)
                    self._pool.retain([slot])
            found = sum(slot is not None for slot in slots)
            self._hits += found
            self._misses += len(slots) - found
        return slots

    def release(self, slots: Iterable[int]) -> None:
        """End the use of reserved or acquired slots."""
        with self._lock:
            self._pool.release(slots)

    # -- state ----------------------------------------------------------------------------------------------------

    def stats(self) -> TierStats:
        with self._lock:
            num_slots, block_bytes = self._slab.shape
            return TierStats(
                capacity_bytes=num_slots * block_bytes,
                used_bytes=(num_slots - self._pool.num_free) * block_bytes,
                entries=len(self._slots),
                hits=self._hits,
                misses=self._misses,
                stored=self._stored,
                rejected=self._rejected,
                evicted=self._evicted,
                read_bytes=self._read_bytes,
                written_bytes=self._written_bytes,
                read_bandwidth=self._reading.bytes_per_second,
                write_bandwidth=self._writing.bytes_per_second,
            )

    def forget_counts(self) -> None:
        with self._lock:
            self._hits = self._misses = self._stored = self._rejected = self._evicted = 0
            self._read_bytes = self._written_bytes = 0

    def sync(self) -> None:
        """Memory is as durable as it gets."""

    def close(self) -> None:
        self._copier.shutdown()
        with self._lock:
            self._pool.release(self._slots.values())
            self._slots.clear()
            self._process_only.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError unless pool and map agree. For tests: visits every slot."""
        with self._lock:
            self._pool.check_integrity()
            assert len(set(self._slots.values())) == len(self._slots), "two keys share a slot"
            assert all(self._pool.refcount(slot) >= 1 for slot in self._slots.values())

    def _touch(self, key: bytes) -> bool:
        if key not in self._slots:
            return False
        self._slots.move_to_end(key)
        self._quota.touch(key)
        return True

    def _allocate(self) -> int | None:
        """A slot of one's own; None if all are in use."""
        if self._pool.num_free == 0 and not self._evict_one():
            return None
        return self._pool.allocate(1)[0]

    def _evict_one(self) -> bool:
        for key in itertools.chain(self._quota.go_first(), self._slots):
            slot = self._slots[key]
            if self._pool.refcount(slot) == 1:
                if self._on_evict is not None:
                    lifetime = Lifetime.PROCESS if key in self._process_only else Lifetime.DURABLE
                    self._on_evict(Entry(key, (self._slab[slot],), self._quota.tenant_of(key) or "", lifetime))
                del self._slots[key]
                self._gone(key)
                self._pool.release([slot])
                self._evicted += 1
                return True
        return False

    def _note_stored(self, entry: Entry) -> None:
        """``entry`` is here, and was stored just now: new, or once more."""
        self._quota.used(entry.key, entry.tenant)
        if entry.lifetime is Lifetime.DURABLE:
            self._process_only.discard(entry.key)

    def _keep_here(self, key: bytes) -> None:
        """``key``, which is about to be stored, must not outlive the process; one that is here already may."""
        with self._lock:
            if key not in self._slots:
                self._process_only.add(key)

    def _gone(self, key: bytes) -> None:
        self._quota.gone(key)
        self._process_only.discard(key)

    def _note_write(self, seconds: float) -> None:
        with self._lock:
            self._writing.observe(self._slab.shape[1], seconds)
            self._written_bytes += self._slab.shape[1]

    def _note_read(self, count: int, seconds: float) -> None:
        with self._lock:
            self._reading.observe(count * self._slab.shape[1], seconds)
            self._read_bytes += count * self._slab.shape[1]
