"""The batch store for asyncio: a thread for the database and the contents of the files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, TypeVar

from ..errors import StoreError
from ..ids import unguessable
from ..store.threads import to_the_end
from .batch import Batch, FilePurpose, LineResult, StoredFile
from .config import BatchesConfig
from .contents import FileContents
from .counts import BatchCounts, BatchTally
from .database import BatchChange, BatchDatabase
from .failures import ContentLost, batch_store_errors

DATABASE_NAME = "batches.db"
FOLDER_NAME = "files"
_Result = TypeVar("_Result")


class BatchStore:
    """Files and batches on disk: ``batches.db`` (SQLite, every commit synced) and ``files/`` in ``folder``.

    The session store's lock keeps other servers from the folder. What a method has returned survives the end of the
    process and of the machine. All methods raise StoreError when the disk fails them.
    """

    def __init__(self, folder: Path, config: BatchesConfig) -> None:
        """Open or create, and delete what a killed process left half done. Blocks for as long as that takes."""
        self._path = folder / DATABASE_NAME
        self._config = config
        with batch_store_errors(self._path):
            self._contents = FileContents(folder / FOLDER_NAME)
        self._database = BatchDatabase(self._path)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sessile-batch-store")
        try:
            self._database.prepare()
            self._remove_strangers()
            self._tally = BatchTally(self._database.readable_unfinished())
        except BaseException:
            self._thread.shutdown()
            self._database.close()
            raise

    async def add_file(self, file: StoredFile, pieces: Iterable[bytes]) -> None:
        """Keep an uploaded file, whose content is ``pieces``. Raises StorageFull if the tenant may keep no more."""

        def add() -> None:
            self._database.require_room(file.tenant, file.num_bytes, self._config)
            with batch_store_errors(self._path):
                self._contents.write(file.file_id, pieces)
            try:
                self._database.add_file(file, self._config)
            except BaseException:
                with suppress(OSError):
                    self._contents.remove([file.file_id])
                raise

        await self._do(add)

    async def file(self, tenant: str, file_id: str) -> StoredFile:
        """A file of this tenant. Raises UnknownFile."""
        return await self._do(lambda: self._database.file(tenant, file_id))

    async def files(
        self, tenant: str, purpose: FilePurpose | None, *, after: str | None, limit: int, newest_first: bool
    ) -> list[StoredFile]:
        """Files of a tenant, behind the file ``after``. Raises UnknownFile."""
        return await self._do(
            lambda: self._database.files(tenant, purpose, after=after, limit=limit, newest_first=newest_first)
        )

    async def delete_file(self, tenant: str, file_id: str) -> None:
        """Delete a file. Raises UnknownFile, and FileInUse while a batch reads it."""

        def delete() -> None:
            self._database.delete_file(tenant, file_id)
            with batch_store_errors(self._path):
                self._contents.remove([file_id])

        await self._do(delete)

    def path(self, file_id: str) -> Path:
        """Where the content of a file is. It may be deleted at any time, except while a batch reads it."""
        return self._contents.path(file_id)

    def open_content(self, file: StoredFile) -> IO[bytes]:
        """The content of a file, to be closed; blocks. Raises ContentLost where it is not all there."""
        with batch_store_errors(self._path):
            try:
                content = self._contents.path(file.file_id).open("rb")
            except FileNotFoundError as error:
                raise ContentLost(file.file_id, "it is not in the server's data folder any more") from error
            found = os.fstat(content.fileno()).st_size
            if found == file.num_bytes:
                return content
            content.close()
        raise ContentLost(file.file_id, f"it has {found} bytes, {file.num_bytes} were written")

    async def add_batch(self, batch: Batch) -> None:
        """Keep a new batch. Raises UnknownFile, or CapacityError if the tenant has too many that are not over."""
        await self._do(lambda: self._tally.note(self._database.add_batch(batch, self._config)))

    async def batch(self, tenant: str, batch_id: str) -> Batch:
        """A batch of this tenant. Raises UnknownBatch."""
        return await self._do(lambda: self._database.batch(tenant, batch_id))

    async def batches(self, tenant: str, *, after: str | None, limit: int) -> list[Batch]:
        """Batches of a tenant, newest first, behind the batch ``after``. Raises UnknownBatch."""
        return await self._do(lambda: self._database.batches(tenant, after=after, limit=limit))

    async def unfinished(self, tenant: str) -> Batch | None:
        """The oldest batch of a tenant that is not over."""
        return await self._do(lambda: self._database.unfinished(tenant))

    async def tenants_with_work(self) -> list[str]:
        """The tenants that have batches which are not over."""
        return await self._do(self._database.tenants_with_work)

    async def change(self, batch_id: str, change: BatchChange) -> Batch:
        """Make a change of a batch durable. ``change`` gets it as it stands, on the store's thread.

        Raises UnknownBatch, and what ``change`` raises.
        """
        return await self._do(lambda: self._tally.note(self._database.change(batch_id, change)))

    async def record(self, batch_id: str, results: Sequence[LineResult]) -> Batch:
        """Keep what became of lines; one that has a result already keeps it."""
        return await self._do(lambda: self._tally.note(self._database.record(batch_id, results)))

    async def lines_with_results(self, batch_id: str) -> set[int]:
        """The lines of a batch that have ended."""
        return await self._do(lambda: self._database.lines_with_results(batch_id))

    async def finish(self, batch: Batch, now: float) -> Batch:
        """Write a batch's results to files and end it, as its ``ending`` says."""
        return await self._do(lambda: self._finish(batch, now))

    def _finish(self, batch: Batch, now: float) -> Batch:
        self._remove_strangers()  # left by an attempt that failed
        output = self._written(batch, "output", now, succeeded=True)
        errors = self._written(batch, "errors", now, succeeded=False)

        def ended(current: Batch) -> Batch:
            return current.at(
                current.ending,
                now,
                output_file_id=None if output is None else output.file_id,
                error_file_id=None if errors is None else errors.file_id,
            )

        files = [file for file in (output, errors) if file is not None]
        return self._tally.note(self._database.finish(batch.batch_id, files, ended))

    def _written(self, batch: Batch, name: str, now: float, *, succeeded: bool) -> StoredFile | None:
        file_id = new_file_id()
        with closing(self._database.results(batch.batch_id, succeeded=succeeded)) as lines:
            first = next(lines, None)
            if first is None:
                return None
            with batch_store_errors(self._path):
                size = self._contents.write(file_id, _lines(first, lines))
        return StoredFile(
            file_id=file_id,
            tenant=batch.tenant,
            filename=f"{batch.batch_id}_{name}.jsonl",
            purpose=FilePurpose.BATCH_OUTPUT,
            num_bytes=size,
            created_at=now,
            expires_at=now + self._config.ttl_s,
        )

    async def prune(self, now: float) -> None:
        """Delete files and batches whose time is over."""

        def prune() -> None:
            self._database.prune(now, self._config.ttl_s)
            self._remove_strangers()

        await self._do(prune)

    def counts(self) -> BatchCounts:
        """How many batches there are and how far they have come; waits for nothing."""
        return self._tally.counts()

    def _remove_strangers(self) -> None:
        """Delete the contents that no file has: of uploads and ends of batches that failed, or were killed."""
        known = self._database.all_file_ids()
        with batch_store_errors(self._path):
            self._contents.remove_all_but(known)

    def close(self) -> None:
        """Finish what was asked, and close the database."""
        self._thread.shutdown()
        self._database.close()

    async def _do(self, work: Callable[[], _Result]) -> _Result:
        """Work of the thread, to its end: a cancelled caller hears of it only then, so that both know what happened."""
        try:
            submitted: Future[_Result] = self._thread.submit(work)
        except RuntimeError as error:
            raise StoreError("the batch store is closed", remedy="start the server again") from error
        return await to_the_end(submitted)


def new_file_id() -> str:
    """An id that nobody can guess."""
    return unguessable("file-")


def _lines(first: bytes, rest: Iterable[bytes]) -> Iterable[bytes]:
    yield first + b"\n"
    for line in rest:
        yield line + b"\n"
