"""The files of the session store: how they come to be, and whether they are still there."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from sqlite_utils import Database

from ..errors import StoreUnavailable
from .failures import store_errors
from .rows import damaged
from .schema import migrate

DATABASE_NAME = "sessions.db"


def create_database(path: Path) -> None:
    """Make sure that a complete database stands at ``path``.

    It is built under another name and renamed, so that an empty file at ``path`` can only be damage.
    """
    if path.exists():
        if path.stat().st_size == 0:
            raise damaged(f"{path} is empty")
        return
    write_ahead_log = path.with_name(f"{path.name}-wal")
    if write_ahead_log.exists() and write_ahead_log.stat().st_size > 0:
        raise damaged(f"{path} is missing beside its write-ahead log")
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with store_errors(path):
        database = Database(sqlite3.connect(unfinished), execute_plugins=False)
        try:
            database.conn.execute("PRAGMA synchronous = OFF")  # synced as a whole, below
            migrate(database)
        finally:
            database.close()
    make_durable(unfinished)
    unfinished.rename(path)
    make_durable(path.parent)


def make_durable(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def synchronous(connection: sqlite3.Connection) -> Database:
    """The database behind a new connection, each commit of which is on the disk when it returns."""
    try:
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return Database(connection, execute_plugins=False)


class OpenFiles:
    """The database and its write-ahead log as they were opened; what is written to removed files is lost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._paths = (path, path.with_name(f"{path.name}-wal"))
        self._opened = self._identities()

    def require_in_place(self) -> None:
        """Raise StoreError if a file was removed or replaced."""
        if self._identities() != self._opened:
            raise StoreUnavailable(
                f"the session store {self._path} was removed or replaced while the server runs",
                remedy="put it back, or restore a backup, and start the server again; nothing new is taken until then",
            )

    def _identities(self) -> list[tuple[int, int] | None]:
        return [_identity(path) for path in self._paths]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
