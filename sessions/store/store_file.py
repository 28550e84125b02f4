"""The file of the session store: a SQLite connection that is checked before it is used, and written in transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from ..errors import StoreError, StoreUnavailable
from .failures import found_damage, store_errors
from .files import OpenFiles, synchronous
from .health import StoreHealth
from .rows import damaged
from .schema import SCHEMA_VERSION, migrate

# Larger files are checked row by row as they are read. The table of sessions is always checked with its indexes: an
# index that lost a row would make its session disappear without an error.
_FULL_CHECK_BYTES = 64 * 2**20


class StoreFile:
    """A connection, used by one thread at a time, and ``health``, which hears how each of its transactions ended.

    ``tables``: what is in it. Every method raises StoreError when the file fails it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.health = StoreHealth(path.parent)
        self._files: OpenFiles | None = None
        with store_errors(path):
            uri = f"{path.resolve().as_uri()}?mode=rw"
            connection = sqlite3.connect(uri, uri=True, check_same_thread=False, timeout=5.0)
            self.tables = synchronous(connection)

    def prepare(self) -> None:
        """Check the file, switch to the write-ahead log and bring the schema to this version."""
        with store_errors(self._path):
            small = self._path.stat().st_size <= _FULL_CHECK_BYTES
            check = "PRAGMA integrity_check(3)" if small else "PRAGMA integrity_check(sessions)"
            self._require_sound(check)
            self.tables.enable_wal()
            migrate(self.tables)
            # Written each time, so that a file that can only be read fails here and not at the first turn.
            self.tables.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._files = OpenFiles(self._path)

    def forbid_writes(self) -> None:
        """Make this a connection that only reads."""
        with store_errors(self._path):
            self.tables.conn.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        with store_errors(self._path):
            self.tables.close()

    def errors(self) -> AbstractContextManager[None]:
        """Errors of SQLite inside as StoreError."""
        return store_errors(self._path)

    def transaction(self) -> AbstractContextManager[None]:
        """All or nothing of a change that is made inside; how it ended is told to ``health``."""
        return self._writing(self.health.failed)

    @contextmanager
    def _writing(self, failed: Callable[[StoreUnavailable], None]) -> Iterator[None]:
        try:
            if self._files is not None:
                self._files.require_in_place()
            with store_errors(self._path), self.tables.atomic():
                yield
        except StoreUnavailable as error:
            failed(error)
            raise
        except StoreError as error:
            if found_damage(error):
                self.health.damaged(error)
            raise
        self.health.succeeded()

    def probe(self) -> None:
        """Write something that changes nothing: ``health`` hears whether that can be done. A file that was found
        damaged is checked first."""
        try:
            if self.health.is_damaged:
                self._require_sound("PRAGMA integrity_check(3)")
                self.health.found_sound()
            self.health.require_room()
        except StoreUnavailable as error:
            self.health.probe_failed(error)
            return
        except StoreError as error:
            self.health.check_failed(error)
            return
        with suppress(StoreError), self._writing(self.health.probe_failed):
            self.tables.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _require_sound(self, check: str) -> None:
        with store_errors(self._path):
            problems = [row[0] for row in self.tables.execute(check)]
        if problems != ["ok"]:
            raise damaged("; ".join(problems))
