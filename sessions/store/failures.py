"""SQLite's errors as errors of ours, each with what to do about it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StoreError, StoreUnavailable
from .rows import damaged

RETRY_S = 5.0  # the store finds out by itself, some seconds after the disk is well again
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """SQLite's errors as StoreError, each with what to do about it."""
    try:
        yield
    except sqlite3.Error as error:
        raise _store_error(error, path) from error
    except UnicodeDecodeError as error:
        raise damaged(f"{path}: a text in it is not UTF-8") from error


def _store_error(error: sqlite3.Error, path: Path) -> StoreError:
    match _code(error):
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return damaged(f"{path}: {error}")
        case sqlite3.SQLITE_FULL:
            return StoreUnavailable(
                "the disk of the session store is full", remedy=f"free space for {path.parent}", retry_after_s=RETRY_S
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreUnavailable(
                f"the session store {path} cannot be written: {error}",
                remedy="make the data folder writable for this user, or name another one with --data-dir",
                retry_after_s=RETRY_S,
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreError(
                f"the session store {path} is in use by another process", remedy="close the program that has it open"
            )
        case sqlite3.SQLITE_IOERR:
            return StoreUnavailable(
                f"the disk of the session store {path} failed: {error}",
                remedy="look for errors of the disk in the system's log; nothing that was acknowledged is lost by this",
                retry_after_s=RETRY_S,
            )
        case _:
            return StoreError(
                f"the session store {path} failed: {error}",
                remedy="look for errors of the disk in the system's log; nothing that was acknowledged is lost by this",
            )


def found_damage(error: StoreError) -> bool:
    """Whether SQLite itself said that the file is not what it wrote."""
    return isinstance(error.__cause__, sqlite3.Error) and _code(error.__cause__) in _DAMAGED


def _code(error: sqlite3.Error) -> int:
    """The primary code of an extended one."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
