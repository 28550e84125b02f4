"""The session store for asyncio: a thread that writes, a thread that reads, and the lock on the data folder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ..errors import StoreError
from ..session import Place, Session, SessionLog
from .database import DATABASE_NAME, Change, SessionDatabase, create_database
from .lock import DataFolderLock
from .rows import StoredAnswer

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class _DatabaseThread:
    """One connection and the only thread that uses it."""

    def __init__(self, path: Path, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        try:
            self.database = self._executor.submit(SessionDatabase, path).result()
        except BaseException:
            self._executor.shutdown()
            raise

    async def run(self, work: Callable[[SessionDatabase], _Result]) -> _Result:
        """Do ``work`` after what was asked before."""
        try:
            future = self._executor.submit(work, self.database)
        except RuntimeError as error:
            raise StoreError("the session store is closed", remedy="start the server again") from error
        return await asyncio.wrap_future(future)

    async def run_to_the_end(self, work: Callable[[SessionDatabase], _Result]) -> _Result:
        """As ``run``, but a cancelled caller hears of it only once the work is done: both know what happened."""
        task = asyncio.ensure_future(self.run(work))
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            task.exception()  # seen: the caller asked not to be told
            raise cancelled
        return task.result()

    def run_behind(self, work: Callable[[SessionDatabase], object]) -> None:
        """Do ``work`` after what was asked before, for nobody who waits."""
        self._executor.submit(work, self.database).add_done_callback(_log_failure)

    def close(self) -> None:
        """Finish what was asked, then close the connection."""
        self._executor.submit(self.database.close).result()
        self._executor.shutdown()


def _log_failure(done: Future[object]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        logger.error("the session store was not tidied up: %s", error)


class SessionStore:
    """Sessions on disk, under ``folder``: ``sessions.db`` (SQLite, write-ahead log, every commit synced) and a lock.

    What a method has returned survives the end of the process and of the machine. All methods raise StoreError when
    the file or the disk fails; an answer is then never given, so that nothing acknowledged can be lost.
    """

    def __init__(self, folder: Path) -> None:
        """Open or create. Blocks for as long as a check of the file takes.

        Raises:
            StoreError: the folder cannot be written or is in use, or the file is damaged or of a newer version.
        """
        self._lock = DataFolderLock(folder)
        path = folder / DATABASE_NAME
        try:
            try:
                create_database(path)
            except OSError as error:
                raise StoreError(
                    f"the session store {path} cannot be made: {error.strerror}",
                    remedy="make the data folder writable for this user, or name another one with --data-dir",
                ) from error
            self._writer = _DatabaseThread(path, "sessile-store-writer")
            try:
                self._writer.database.prepare()
                self._reader = _DatabaseThread(path, "sessile-store-reader")
                self._reader.database.forbid_writes()
            except BaseException:
                self._writer.close()
                raise
        except BaseException:
            self._lock.release()
            raise
        self._closed = False

    async def apply(self, change: Change) -> Session:
        """Make a change durable, all of it or nothing; returns the session as it stands afterwards.

        Raises:
            DuplicateRequest: its request id has an answer already; nothing was changed.
        """
        return await self._writer.run_to_the_end(lambda database: database.apply(change))

    async def session(self, session_id: str) -> Session | None:
        """A session in any state; None if there is none of that id."""
        return await self._reader.run(lambda database: database.session(session_id))

    async def sessions(self, tenant: str, *, after: str = "", limit: int) -> list[Session]:
        """Open sessions of a tenant in the order of their ids, behind the id ``after``."""
        return await self._reader.run(lambda database: database.sessions(tenant, after=after, limit=limit))

    async def log(self, place: Place) -> SessionLog:
        """The entries from the start to ``place``."""
        return await self._reader.run(lambda database: database.log(place))

    async def answer(self, scope: str, request_id: str) -> StoredAnswer | None:
        """The stored answer of a request."""
        return await self._reader.run(lambda database: database.answer(scope, request_id))

    async def prune(self, before: float) -> int:
        """Forget sessions closed, and answers given, before that time, and all entries that no session reaches.

        Returns the number of entries deleted.
        """
        return await self._writer.run_to_the_end(lambda database: database.prune(before))

    def prune_soon(self, before: float) -> None:
        """As ``prune``, behind the changes that wait already; a failure is only logged, the next one tries again."""
        self._writer.run_behind(lambda database: database.prune(before))

    def close(self) -> None:
        """Finish what was asked, fold the write-ahead log into the file and let go of the folder."""
        if self._closed:
            return
        self._closed = True
        try:
            self._reader.close()
            self._writer.close()
        finally:
            self._lock.release()
