"""The threads of the session store, and how changes that come together share one write to the disk."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ..errors import StoreError
from ..session import Session
from .change import Change
from .database import SessionDatabase

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class DatabaseThread:
    """One connection and the only thread that uses it."""

    def __init__(self, path: Path, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        try:
            self.database = self._executor.submit(SessionDatabase, path).result()
        except BaseException:
            self._executor.shutdown()
            raise

    def submit(self, work: Callable[[SessionDatabase], _Result]) -> Future[_Result]:
        """Do ``work`` after what was asked before. Raises StoreError after ``close``."""
        try:
            return self._executor.submit(work, self.database)
        except RuntimeError as error:
            raise StoreError("the session store is closed", remedy="start the server again") from error

    def close(self) -> None:
        """Finish what was asked, then close the connection."""
        try:
            self._executor.submit(self.database.close).result()
        finally:
            self._executor.shutdown()


class GroupCommit:
    """Changes that arrive while one is being written wait together and are written together."""

    def __init__(self, writer: DatabaseThread) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._waiting: list[tuple[Change, Future[Session]]] = []

    def submit(self, change: Change) -> Future[Session]:
        """The outcome of a change, when it is on disk; StoreError after the writer was closed."""
        outcome: Future[Session] = Future()
        outcome.set_running_or_notify_cancel()  # from here on it will be done, whoever waits
        with self._lock:
            self._waiting.append((change, outcome))
            first = len(self._waiting) == 1
        if first:
            try:
                self._writer.submit(self._commit)
            except StoreError as error:
                with self._lock:
                    refused, self._waiting = self._waiting, []
                for _, other in refused:
                    other.set_exception(error)
        return outcome

    def _commit(self, database: SessionDatabase) -> None:
        with self._lock:
            group, self._waiting = self._waiting, []
        try:
            outcomes = database.apply_all([change for change, _ in group])
        except BaseException as error:
            for _, outcome in group:
                outcome.set_exception(error)
            raise
        for (_, outcome), result in zip(group, outcomes, strict=True):
            if isinstance(result, Session):
                outcome.set_result(result)
            else:
                outcome.set_exception(result)


async def to_the_end(work: Future[_Result] | asyncio.Future[_Result]) -> _Result:
    """Await work of another thread; a cancelled caller hears of it only once it is done: both know what happened."""
    future = asyncio.wrap_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        future.exception()  # seen: the caller asked not to be told
        raise cancelled
    return future.result()


async def in_thread(work: Callable[[], _Result]) -> _Result:
    """Do ``work`` in a thread, to its end: a caller that is cancelled may then close what it works with."""
    return await to_the_end(asyncio.get_running_loop().run_in_executor(None, work))


def log_failure(done: Future[object]) -> None:
    """For work that nobody waits for."""
    if not done.cancelled() and (error := done.exception()) is not None:
        logger.error("the session store was not tidied up: %s", error)
