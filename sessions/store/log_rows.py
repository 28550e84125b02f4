"""The rows of a session's log: the path through the tree of entries that ends at a place."""

from __future__ import annotations

from collections.abc import Sequence

from sqlite_utils import Database

from ..session import Head, LogPart, Place, SessionLog
from . import rows
from .rows import damaged

# From the head to the first entry. Ids fall along a path, so that even a damaged file cannot make it endless.
_PATH = """
WITH RECURSIVE path(id, used) AS (
    SELECT ?, ?
    UNION ALL
    SELECT entries.parent_id, entries.parent_used FROM path JOIN entries ON entries.entry_id = path.id
    WHERE entries.parent_id < entries.entry_id
    LIMIT ?
)
"""
_ENTRIES = f"""{_PATH}
SELECT entries.*, path.used FROM path JOIN entries ON entries.entry_id = path.id ORDER BY entries.start
"""  # noqa: S608
_ACCOUNTS = f"{_PATH} SELECT accounts.* FROM path JOIN accounts ON accounts.entry_id = path.id"  # noqa: S608
_ALL = -1  # no limit


def log(database: Database, place: Place) -> SessionLog:
    """The entries from the start to ``place``. Raises StoreError for damaged ones, and where one is missing."""
    parts = last_parts(database, place, _ALL)
    if place.head is not None:
        _check_path(parts, place)
    return SessionLog(parts)


def last_parts(database: Database, place: Place, count: int) -> tuple[LogPart, ...]:
    """The last entries up to ``place``, oldest first; at most ``count``. Raises StoreError for damaged ones."""
    if place.head is None:
        return ()
    parts = []
    for row in list(database.query(_ENTRIES, [place.head.entry_id, place.head.used, count])):
        used = row.pop("used")
        parts.append(LogPart(rows.entry_from(row), used))
    return tuple(parts)


def accounts(database: Database, place: Place) -> dict[int, bytes]:
    """What is remembered of the entries up to ``place``, by their ids, where anything is."""
    if place.head is None:
        return {}
    found = database.query(_ACCOUNTS, [place.head.entry_id, place.head.used, _ALL])
    return {row["entry_id"]: rows.account_from(row) for row in found}


def _check_path(parts: Sequence[LogPart], place: Place) -> None:
    """Every part follows the one before it, and the last ends at ``place``."""
    before: Head | None = None
    tokens = 0
    for part in parts:
        if part.entry.parent != before or part.entry.start != tokens or not 0 < part.used <= len(part.entry.token_ids):
            raise damaged(f"entry {part.entry.entry_id} does not continue the one before it")
        before, tokens = part.head, part.end
    if before != place.head or tokens != place.num_tokens:
        raise damaged("a session's log is incomplete")
