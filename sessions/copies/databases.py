"""A copy of one SQLite database, and whether it is sound."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import AbstractContextManager, closing
from pathlib import Path

from ..batches.failures import batch_store_errors
from ..batches.store import DATABASE_NAME as BATCHES
from ..errors import StoreError
from ..store.failures import store_errors
from ..store.files import make_durable
from .contents import bytes_of


def copy_database(source: Path, target: Path) -> None:
    """Copy one snapshot, whatever is written meanwhile, and make it durable.

    Raises StoreError, also where the copy has damage, and OSError.
    """
    target.unlink(missing_ok=True)
    with _errors_of(source), closing(_read_only(source)) as database:
        database.execute("VACUUM INTO ?", [str(target)])
    os.chmod(target, 0o600)
    make_durable(target)
    require_sound(target)


def require_sound(path: Path) -> None:
    """Read all of a database and check it. Raises StoreError for damage."""
    with _errors_of(path), closing(_read_only(path)) as database:
        problems = [row[0] for row in database.execute("PRAGMA integrity_check(3)")]
        if problems != ["ok"]:
            raise StoreError(f"{path} is damaged: {'; '.join(problems)}", remedy="use another copy")


def sizes_of_files(batches: Path) -> dict[str, int]:
    """The files that a batch database knows, and how many bytes each has. Raises StoreError."""
    with batch_store_errors(batches), closing(_read_only(batches)) as database:
        return dict(database.execute("SELECT file_id, num_bytes FROM files"))


def forget_files(batches: Path, file_ids: Iterable[str]) -> None:
    """Delete files from the copy of a batch database. Raises StoreError."""
    with batch_store_errors(batches), closing(sqlite3.connect(batches)) as database, database:
        database.executemany("DELETE FROM files WHERE file_id = ?", [(file_id,) for file_id in file_ids])


def size_of_database(path: Path) -> int:
    """The bytes of a database and of its write-ahead log. Raises OSError."""
    return path.stat().st_size + bytes_of(path.with_name(f"{path.name}-wal"))


def _errors_of(path: Path) -> AbstractContextManager[None]:
    return batch_store_errors(path) if path.name == BATCHES else store_errors(path)


def _read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
