"""Files and batches as callers see them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import IO

import msgspec

from ..background import keep_doing
from ..errors import RequestError, StoreError
from ..ids import unguessable
from ..store.threads import in_thread
from .batch import Batch, BatchStatus, FilePurpose, StoredFile
from .config import BatchesConfig
from .counts import BatchCounts
from .errors import BatchIsOver, UnknownFile
from .failures import ContentLost, InputLost
from .lines import BatchInput
from .store import BatchStore, new_file_id
from .worker import BatchWorker, Clock, RunLine

logger = logging.getLogger(__name__)
_WINDOW = re.compile(r"([1-9][0-9]{0,3})([mhd])")
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}
_PRUNE_EVERY_S = 600.0


class Batches:
    """The offline lane. Nothing runs before ``start``; what is asked until then waits. For one event loop.

    ``clock``: seconds since the epoch. A line has ``max_line_bytes`` at most.
    """

    def __init__(self, store: BatchStore, config: BatchesConfig, clock: Clock, *, max_line_bytes: int) -> None:
        self.config = config
        self._store = store
        self._clock = clock
        self._max_line_bytes = max_line_bytes
        self._worker: BatchWorker | None = None
        self._pruning: asyncio.Future[None] | None = None

    async def start(self, run_line: RunLine) -> None:
        """Go on with what is not over. Raises StoreError."""
        self._worker = BatchWorker(
            self._store,
            run_line,
            self._input,
            self._clock,
            concurrency=self.config.concurrency,
            max_lines=self.config.max_lines,
        )
        for tenant in await self._store.tenants_with_work():
            self._worker.has_work(tenant)
        self._pruning = asyncio.ensure_future(keep_doing("old files and batches are not deleted", self._prune))

    async def aclose(self) -> None:
        """End what runs; it is run again after the next start."""
        if self._pruning is not None:
            self._pruning.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._pruning
        if self._worker is not None:
            await self._worker.aclose()

    def counts(self) -> BatchCounts:
        """How many batches there are, of all tenants, and how far they have come; waits for nothing."""
        counts, worker = self._store.counts(), self._worker
        if worker is None:
            return counts
        return msgspec.structs.replace(
            counts, stalled=worker.num_stalled, lines_running=worker.num_running, retries=worker.num_retries
        )

    # -- files --------------------------------------------------------------------------------------------------------

    async def add_file(
        self, tenant: str, filename: str, num_bytes: int, pieces: Iterable[bytes], *, keep_s: float | None = None
    ) -> StoredFile:
        """Keep a file of requests, for ``keep_s`` seconds. Raises RequestError; StorageFull."""
        if num_bytes > self.config.max_file_bytes:
            raise RequestError(
                f"the file has {num_bytes} bytes",
                field="file",
                remedy=f"send at most {self.config.max_file_bytes} (--batches-max-file-bytes)",
            )
        now = self._clock()
        file = StoredFile(
            file_id=new_file_id(),
            tenant=tenant,
            filename=filename,
            purpose=FilePurpose.BATCH,
            num_bytes=num_bytes,
            created_at=now,
            expires_at=now + (self.config.ttl_s if keep_s is None else min(keep_s, self.config.ttl_s)),
        )
        await self._store.add_file(file, pieces)
        return file

    async def file(self, tenant: str, file_id: str) -> StoredFile:
        """A file of this tenant. Raises UnknownFile."""
        return await self._store.file(tenant, file_id)

    async def files(
        self, tenant: str, purpose: FilePurpose | None, *, after: str | None, limit: int, newest_first: bool
    ) -> list[StoredFile]:
        """Files of a tenant, behind the file ``after``. Raises UnknownFile."""
        return await self._store.files(tenant, purpose, after=after, limit=limit, newest_first=newest_first)

    async def delete_file(self, tenant: str, file_id: str) -> None:
        """Delete a file. Raises UnknownFile, and FileInUse while a batch reads it."""
        await self._store.delete_file(tenant, file_id)

    async def open_content(self, file: StoredFile) -> IO[bytes]:
        """A file's content, to be closed. It can be read to its end, whoever deletes it meanwhile.

        Raises:
            UnknownFile: it was deleted this moment.
            StoreError: the content is gone or was cut though nobody deleted it, or it cannot be read.
        """
        try:
            return await in_thread(lambda: self._store.open_content(file))
        except ContentLost:
            await self.file(file.tenant, file.file_id)
            raise

    # -- batches ------------------------------------------------------------------------------------------------------

    async def create(
        self,
        tenant: str,
        *,
        endpoint: str,
        input_file_id: str,
        completion_window: str,
        model: str,
        metadata: Mapping[str, str] | None,
    ) -> Batch:
        """Begin a batch; its file is checked before its first line runs.

        Raises:
            RequestError: a completion window that is none.
            UnknownFile: no such file.
            CapacityError: too many batches of the tenant are not over.
        """
        now = self._clock()
        batch = Batch(
            batch_id=unguessable("batch_"),
            tenant=tenant,
            endpoint=endpoint,
            input_file_id=input_file_id,
            completion_window=completion_window,
            metadata=metadata,
            model=model,
            created_at=now,
            expires_at=now + _seconds(completion_window),
        )
        await self._store.add_batch(batch)
        self._wake(tenant)
        return batch

    async def batch(self, tenant: str, batch_id: str) -> Batch:
        """A batch of this tenant, as it stands. Raises UnknownBatch."""
        return await self._store.batch(tenant, batch_id)

    async def batches(self, tenant: str, *, after: str | None, limit: int) -> list[Batch]:
        """Batches of a tenant, newest first, behind the batch ``after``. Raises UnknownBatch."""
        return await self._store.batches(tenant, after=after, limit=limit)

    async def cancel(self, tenant: str, batch_id: str) -> Batch:
        """End a batch: what runs is aborted, what has ended is kept. Again: no change.

        Raises:
            UnknownBatch: no such batch.
            BatchIsOver: it has ended.
        """
        await self._store.batch(tenant, batch_id)
        batch = await self._store.change(batch_id, lambda current: _cancelled(current, self._clock()))
        self._wake(tenant)
        return batch

    def _wake(self, tenant: str) -> None:
        if self._worker is not None:
            self._worker.has_work(tenant)

    async def _input(self, batch: Batch) -> BatchInput:
        """Raises InputLost where there is no such file any more."""
        try:
            file = await self._store.file(batch.tenant, batch.input_file_id)
        except UnknownFile as error:
            raise InputLost(batch.input_file_id, "the batch store does not know it") from error
        return BatchInput(self._store.path(file.file_id), file.num_bytes, batch.endpoint, self._max_line_bytes)

    async def _prune(self) -> None:
        while True:
            try:
                await self._store.prune(self._clock())
            except StoreError as error:
                logger.error("old files and batches are not deleted: %s", error)
            await asyncio.sleep(_PRUNE_EVERY_S)


def _cancelled(current: Batch, now: float) -> Batch:
    if current.status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
        return current
    if current.status is BatchStatus.FINALIZING or current.status.is_over:
        raise BatchIsOver(current.batch_id, current.status)
    return current.at(BatchStatus.CANCELLING, now, ending=BatchStatus.CANCELLED)


def _seconds(window: str) -> float:
    match = _WINDOW.fullmatch(window)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 60.0 <= seconds <= 30 * 86_400.0:
        raise RequestError(
            f"completion_window is {window[:40]!r}",
            field="completion_window",
            remedy='send "24h", or another time from 1m to 30d',
        )
    return seconds
