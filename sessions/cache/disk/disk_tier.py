"""The disk tier: blocks on a local disk that outlive the process.

Threads: any thread stores (into the write queue), asks and drops; one writer thread writes blocks and their records;
``load`` reads with several threads. One lock guards catalogue and counts, and is never held over I/O.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from xxhash import xxh3_64_intdigest

from ..breaker import CircuitBreaker
from ..keys import KVFingerprint
from ..tiers import Bandwidth, Block, Entry, LoadOutcome, Tier, TierStats
from .config import DiskConfig
from .folder import DataFolder
from .index_log import Record, tenant_number
from .namespace import Namespace
from .write_queue import WriteQueue
from .writer import Writer

logger = logging.getLogger(__name__)

PAGE_CACHE_SAMPLES = 12  # blocks of a path of which the system is asked whether it has them in memory


@dataclasses.dataclass(slots=True)
class DiskCounts:
    """What happened since the start; changed under the tier's lock."""

    hits: int = 0
    misses: int = 0
    corrupt: int = 0
    errors: int = 0
    late: int = 0
    stored: int = 0
    rejected: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


class DiskTier:
    """See ``LowerTier``, and the package's docstring for what lies on the disk."""

    def __init__(
        self, config: DiskConfig, fingerprint: KVFingerprint, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Open ``config.path`` for blocks of ``fingerprint`` and start the threads.

        Raises:
            ConfigError: the folder is another server's or cannot be used.
        """
        config.validate(fingerprint.block_bytes)
        self._clock = clock
        self._block_bytes = fingerprint.block_bytes
        self._lock = threading.Lock()
        self._counts = DiskCounts()
        self._reading = Bandwidth()
        self._read_breaker = CircuitBreaker(clock=clock)
        self._folder = DataFolder(Path(config.path))
        try:
            self._namespace = Namespace(self._folder, config, fingerprint)
        except BaseException:
            self._folder.close()
            raise
        self._counts.corrupt += self._namespace.num_damaged
        self._queue = WriteQueue(config.write_queue_bytes, self._block_bytes)
        self._writer = Writer(self._namespace, self._queue, self._lock, self._counts, clock)
        self._readers = ThreadPoolExecutor(config.num_readers, thread_name_prefix="disk-read")
        self._num_readers = config.num_readers
        self._writer.start()

    @property
    def tier(self) -> Tier:
        return Tier.DISK

    @property
    def blocks_per_entry(self) -> int:
        return 1

    @property
    def answers_at_once(self) -> bool:
        return True

    # -- what anyone may call, the step included ------------------------------------------------------------------

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        with self._lock:
            if not self._read_breaker.would_allow():
                return [key in self._queue for key in keys]
            catalogue = self._namespace.catalogue
            return [key in catalogue or key in self._queue for key in keys]

    def store(self, entries: Sequence[Entry]) -> list[bool]:
        """See ``LowerTier``. Not taken: the write queue is full, or writing fails at the moment."""
        taken = []
        for entry in entries:
            with self._lock:
                catalogue = self._namespace.catalogue
                known = catalogue.touch(entry.key)
                catalogue.quota.used(entry.key, tenant_number(entry.tenant))
                ready = not self._writer.is_failing
            taken.append(known or (ready and self._queue.offer(entry.key, entry.blocks[0])))
            if not taken[-1]:
                with self._lock:
                    catalogue.quota.gone(entry.key)
        with self._lock:
            self._counts.rejected += taken.count(False)
        return taken

    def drop(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._queue.cancel(key)
                stored = self._namespace.catalogue.remove(key)
                if stored is not None:
                    self._writer.note_dropped(stored)

    def stats(self) -> TierStats:
        with self._lock:
            catalogue = self._namespace.catalogue
            return TierStats(
                capacity_bytes=catalogue.num_slots * self._block_bytes,
                used_bytes=catalogue.num_used_slots * self._block_bytes,
                entries=len(catalogue),
                evicted=catalogue.num_evicted,
                read_bandwidth=self._reading.bytes_per_second,
                write_bandwidth=self._writer.bandwidth.bytes_per_second,
                unavailable=self._read_breaker.reason or self._writer.failure,
                **dataclasses.asdict(self._counts),
            )

    def forget_counts(self) -> None:
        """What was damaged or failed stays told."""
        with self._lock:
            counts = self._counts
            counts.hits = counts.misses = counts.stored = counts.rejected = 0
            counts.read_bytes = counts.written_bytes = 0

    def share_in_page_cache(self, keys: Sequence[bytes]) -> float:
        """How much of the blocks of ``keys`` a load would find in the system's page cache or in the write queue, by a
        sample of them; 0 where the system does not tell. Takes some microseconds a sample, and no device."""
        step = max(1, len(keys) // PAGE_CACHE_SAMPLES)
        sample = keys[:: step if len(keys) > PAGE_CACHE_SAMPLES else 1]
        with self._lock:
            waiting = sum(key in self._queue for key in sample)
            slots = self._namespace.catalogue.slots(sample)
        cached = sum(self._namespace.segments.is_in_page_cache(slot) for slot in slots)
        return min(1.0, (waiting + cached) / max(1, len(sample)))

    # -- what an I/O thread calls ---------------------------------------------------------------------------------

    def load(self, entries: Sequence[Entry], deadline: float) -> list[LoadOutcome]:
        """See ``LowerTier``. Reads that the disk does not answer are waited for; none is begun after ``deadline``."""
        with self._lock:
            if not self._read_breaker.allows():
                self._counts.misses += len(entries)
                return [LoadOutcome.MISS] * len(entries)
        started = self._clock()
        outcomes = [LoadOutcome.LATE] * len(entries)

        def read_share(first: int) -> None:
            for i in range(first, len(entries), shares):
                if self._clock() >= deadline:
                    return
                outcomes[i] = self._load_one(entries[i])

        shares = min(self._num_readers, len(entries))
        others = [self._readers.submit(read_share, first) for first in range(1, shares)]
        read_share(0)
        for other in others:
            other.result()
        self._note_load(outcomes, self._clock() - started)
        return outcomes

    def leave_page_cache(self, keys: Sequence[bytes]) -> None:
        """Ask the system to forget its copies of the blocks of ``keys``; a load then comes from the disk. ``sync``
        first: what is not on the disk yet stays."""
        with self._lock:
            slots = sorted(self._namespace.catalogue.slots(keys))
        for _, run in itertools.groupby(enumerate(slots), lambda pair: pair[1] - pair[0]):  # slots in a row
            in_a_row = [slot for _, slot in run]
            self._namespace.segments.leave_page_cache(in_a_row[0], len(in_a_row))

    def flush(self, timeout_s: float | None = None) -> bool:
        """Return when all that was taken is in the kernel's hands (it outlives this process), or lost and counted;
        False if that takes longer."""
        return self._queue.wait_until_empty(timeout_s)

    def sync(self) -> None:
        """Return when all that was taken is on the disk (it outlives the machine), or lost and counted."""
        self.flush()
        self._writer.sync()

    def close(self) -> None:
        self._queue.close()
        self._writer.join()
        self._readers.shutdown()
        self._namespace.close()
        self._folder.close()

    @property
    def is_closed(self) -> bool:
        return self._queue.is_closed

    def check_integrity(self) -> None:
        """Raise AssertionError unless the catalogue is consistent. For tests: visits every slot."""
        with self._lock:
            self._namespace.catalogue.check_integrity()

    # -- one block ------------------------------------------------------------------------------------------------

    def _load_one(self, entry: Entry) -> LoadOutcome:
        block = entry.blocks[0]
        if self._queue.copy_to(entry.key, block):
            return LoadOutcome.HIT
        with self._lock:
            namespace = self._namespace
            stored = namespace.catalogue.begin_read(entry.key)
        if stored is None:
            return LoadOutcome.MISS
        try:
            return self._read_stored(stored, block)
        finally:
            with self._lock:
                namespace.catalogue.end_read(stored)

    def _read_stored(self, stored: Record, block: Block) -> LoadOutcome:
        try:
            whole = self._namespace.segments.read(stored.slot, block)
        except FileNotFoundError:
            whole = False
        except OSError as error:
            logger.warning("the disk tier cannot read a block: %s", error)
            with self._lock:
                self._read_breaker.failed(f"reading fails: {error}")
            return LoadOutcome.ERROR
        with self._lock:
            self._read_breaker.succeeded()
        if whole and xxh3_64_intdigest(block.data) == stored.checksum:
            return LoadOutcome.HIT
        with self._lock:
            if self._namespace.catalogue.remove_if(stored):
                self._writer.note_dropped(stored)
        return LoadOutcome.CORRUPT

    def _note_load(self, outcomes: list[LoadOutcome], seconds: float) -> None:
        hits = outcomes.count(LoadOutcome.HIT)
        with self._lock:
            counts = self._counts
            counts.hits += hits
            counts.misses += outcomes.count(LoadOutcome.MISS)
            counts.corrupt += outcomes.count(LoadOutcome.CORRUPT)
            counts.errors += outcomes.count(LoadOutcome.ERROR)
            counts.late += outcomes.count(LoadOutcome.LATE)
            counts.read_bytes += hits * self._block_bytes
            self._reading.observe(hits * self._block_bytes, seconds)
