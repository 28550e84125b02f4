"""How many batches there are and how far they have come, as they stand.

Kept in memory: asking waits for no disk.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from .batch import Batch, BatchStatus


class BatchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """``unfinished``: batches that are not over, by status; ``lines_left``: those of running batches without a result;
    ``stalled``: tenants whose batches stand still because of an error.

    Since the start: ``ended`` batches by status, lines by what came of them, and ``retries``: how often a line was put
    off for what is not its fault.
    """

    unfinished: Mapping[BatchStatus, int]
    stalled: int = 0
    lines_left: int
    lines_running: int = 0
    ended: Mapping[BatchStatus, int]
    lines_succeeded: int
    lines_failed: int
    retries: int = 0


class BatchTally:
    """Follows the batches that are not over, beginning with ``unfinished``. For any threads."""

    def __init__(self, unfinished: Iterable[Batch]) -> None:
        self._lock = threading.Lock()
        self._unfinished = {batch.batch_id: batch for batch in unfinished}
        self._ended: Counter[BatchStatus] = Counter()
        self._succeeded = self._failed = 0

    def note(self, batch: Batch) -> Batch:
        """A batch as it stands after a change that is durable; returns it."""
        with self._lock:
            before = self._unfinished.pop(batch.batch_id, batch)
            self._succeeded += batch.completed - before.completed
            self._failed += batch.failed - before.failed
            if not batch.status.is_over:
                self._unfinished[batch.batch_id] = batch
            elif not before.status.is_over:
                self._ended[batch.status] += 1
        return batch

    def counts(self) -> BatchCounts:
        """As it stands now."""
        with self._lock:
            batches = list(self._unfinished.values())
            ended, succeeded, failed = dict(self._ended), self._succeeded, self._failed
        return BatchCounts(
            unfinished=Counter(batch.status for batch in batches),
            lines_left=sum(batch.total - batch.completed - batch.failed for batch in batches if _runs(batch)),
            ended=ended,
            lines_succeeded=succeeded,
            lines_failed=failed,
        )


def _runs(batch: Batch) -> bool:
    return batch.status is BatchStatus.IN_PROGRESS
