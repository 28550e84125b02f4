"""The thread that writes: blocks into slots, then their records into the log."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from ..breaker import CircuitBreaker
from ..tiers import Bandwidth, Block
from .index_log import Record, RecordKind
from .namespace import Namespace
from .write_queue import WriteQueue

if TYPE_CHECKING:
    from .disk_tier import DiskCounts

logger = logging.getLogger(__name__)

_BATCH = 32  # blocks whose records are appended together
_IDLE_S = 0.25  # after which noted drops are written although no block came


class Writer:
    """Takes from the queue until it is closed. A write that fails loses its batch, which is counted, and after some
    failures in a row writing pauses (the breaker).

    ``lock`` is the tier's: it guards the catalogue, the counts and the breaker, and is never held over I/O.
    """

    def __init__(
        self,
        namespace: Namespace,
        queue: WriteQueue,
        lock: threading.Lock,
        counts: DiskCounts,
        clock: Callable[[], float],
    ) -> None:
        self._namespace = namespace
        self._queue = queue
        self._lock = lock
        self._counts = counts
        self._breaker = CircuitBreaker(failures_to_open=2, clock=clock)
        self._dropped: list[Record] = []
        self._compact_later_than = 0  # records; grows when a compaction fails
        self._thread = threading.Thread(target=self._run, name="disk-write", daemon=True)
        self.bandwidth = Bandwidth()

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait until the queue, which was closed, is empty and the thread gone."""
        self._thread.join()

    @property
    def is_failing(self) -> bool:
        """Whether blocks would be lost; False again when the next attempt is due. Under the lock."""
        return not self._breaker.would_allow()

    @property
    def failure(self) -> str:
        """Why writing is paused; empty when it works. Under the lock."""
        return self._breaker.reason

    def note_dropped(self, stored: Record) -> None:
        """The log shall say that ``stored`` is gone. Under the lock."""
        self._dropped.append(stored._replace(kind=RecordKind.DROPPED))

    def sync(self) -> None:
        """Return when what was written is on the disk, or could not be."""
        try:
            self._namespace.sync()
        except OSError as error:
            self._failed(error)

    # -- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                batch = self._queue.take(_BATCH, _IDLE_S)
                if not batch and self._queue.is_closed:
                    break
                self._write(batch)
            self._compact()
        finally:
            self._queue.abandon()

    def _write(self, batch: list[tuple[bytes, Block]]) -> None:
        claims: list[Record] = []
        try:
            if (batch or self._dropped) and self._may_try(len(batch)):
                started = time.perf_counter()
                self._begin_anew_if_removed()
                self._write_blocks(batch, claims)
                self._append(claims)
                self._settle(claims, time.perf_counter() - started)
        except OSError as error:
            with self._lock:
                for stored in claims:
                    self._namespace.catalogue.give_back(stored.slot)
                for key, _ in batch:
                    self._namespace.catalogue.quota.gone(key)
                self._counts.rejected += len(batch)
            self._failed(error)
        finally:
            self._queue.finish([key for key, _ in batch])
        if self._namespace.wants_compaction and self._namespace.log.num_records > self._compact_later_than:
            self._compact()

    def _may_try(self, batch_size: int) -> bool:
        with self._lock:
            allowed = self._breaker.allows()
            if not allowed:
                self._counts.rejected += batch_size
        return allowed

    def _begin_anew_if_removed(self) -> None:
        if self._namespace.is_removed:
            logger.warning("the disk tier's folder was deleted; it begins anew")
            with self._lock:
                self._counts.errors += 1
                self._namespace.catalogue.clear()
                self._dropped.clear()
            self._namespace.begin_anew()

    def _write_blocks(self, batch: list[tuple[bytes, Block]], claims: list[Record]) -> None:
        """Write each block into a slot of its own and note it in ``claims``. Raises: OSError."""
        for key, block in batch:
            with self._lock:
                slot = self._namespace.catalogue.claim_slot()
                if slot is None:
                    self._namespace.catalogue.quota.gone(key)
                    self._counts.rejected += 1
                    continue
                tenant = self._namespace.catalogue.quota.tenant_of(key) or 0
            claims.append(Record(RecordKind.STORED, slot, xxh3_64_intdigest(block.data), key, tenant))
            self._namespace.make_room(slot)
            self._namespace.segments.write(slot, block)

    def _append(self, claims: list[Record]) -> None:
        """Log the drops noted so far, then the new blocks. Raises: OSError."""
        with self._lock:
            dropped = list(self._dropped)
        self._namespace.log.append(dropped + claims)
        with self._lock:
            del self._dropped[: len(dropped)]

    def _settle(self, claims: list[Record], seconds: float) -> None:
        """What was written can be found from now on, unless it was dropped in the meantime."""
        num_bytes = len(claims) * self._namespace.block_bytes
        with self._lock:
            self._breaker.succeeded()
            for stored in claims:
                if self._queue.still_wanted(stored.key):
                    self._namespace.catalogue.put(stored)
                    self._counts.stored += 1
                else:
                    self._namespace.catalogue.give_back(stored.slot)
                    self._namespace.catalogue.quota.gone(stored.key)
                    self.note_dropped(stored)
            self._counts.written_bytes += num_bytes
            self.bandwidth.observe(num_bytes, seconds)

    def _compact(self) -> None:
        """Rewrite the log without what was replaced, in order of use."""
        with self._lock:
            records = self._namespace.catalogue.records()
            num_dropped = len(self._dropped)
        try:
            self._namespace.compact(records)
        except OSError as error:
            self._compact_later_than = 2 * self._namespace.log.num_records
            self._failed(error)
            return
        with self._lock:
            del self._dropped[:num_dropped]

    def _failed(self, error: OSError) -> None:
        name = errno.errorcode.get(error.errno or 0, "unknown")
        logger.warning("the disk tier cannot write (%s): %s", name, error)
        with self._lock:
            self._counts.errors += 1
            self._breaker.failed(f"writing fails: {error}")
