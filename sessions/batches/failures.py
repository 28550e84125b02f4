"""Errors of SQLite and of the disk, and of what is missing there, as errors of ours, each with what to do about it."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StoreError
from .batch import LineProblem


class InputUnreadable(StoreError):
    """The input of a batch cannot be read at the moment. ``code``: as the batch tells it, should it end so."""

    code = "input_file_unreadable"

    def __init__(self, message: str, *, remedy: str, line: int | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.line = line

    def problem(self) -> LineProblem:
        """Why a batch ends that waits for this input no longer."""
        return LineProblem(code=self.code, message=str(self), line=self.line, param="input_file_id")


class InputLost(InputUnreadable):
    """The input of a batch is not what was sent, or is gone. Reading it again does not bring it back."""

    code = "input_file_lost"

    def __init__(self, file_id: str, what: str, *, line: int | None = None) -> None:
        remedy = "send the file again and begin a new batch with it"
        super().__init__(f"the content of file {file_id} is lost: {what}", remedy=remedy, line=line)


class ContentLost(StoreError):
    """The content of a file is gone or not whole, though the store knows the file."""

    def __init__(self, file_id: str, what: str) -> None:
        super().__init__(
            f"the content of file {file_id} is lost: {what}",
            remedy="run the batch again; on the server, `sessile store check` finds all such files, and `sessile store "
            "restore --only batches` goes back to the last good copy",
        )


def damaged(path: Path, what: str) -> StoreError:
    """The error for content that cannot be what was written."""
    return StoreError(
        f"the batch store {path} is damaged: {what}",
        remedy="`sessile store restore --only batches` goes back to the last good copy, some hours old at most, and "
        "keeps what is there now; or move it and the folder files beside it away: files and batches are then gone, "
        "sessions are not",
    )


@contextmanager
def batch_store_errors(path: Path) -> Iterator[None]:
    """Errors of SQLite and of the file system as StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        raise _of_sqlite(error, path) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(path) from error
        raise StoreError(
            f"the batch store's files in {path.parent} failed: {error.strerror}",
            remedy="make the data folder readable and writable for this user",
        ) from error


def _of_sqlite(error: sqlite3.Error, path: Path) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code of an extended one
    match code:
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return damaged(path, str(error))
        case sqlite3.SQLITE_FULL:
            return _full(path)
        case _:
            return StoreError(
                f"the batch store {path} failed: {error}", remedy="look at the data folder's rights and at its disk"
            )


def _full(path: Path) -> StoreError:
    return StoreError("the disk of the batch store is full", remedy=f"free space for {path.parent}")
