"""The offline lane's part of a copy: its database, and the contents of the files that stand in it."""

from __future__ import annotations

import logging
from pathlib import Path

from ..batches.store import DATABASE_NAME, FOLDER_NAME
from ..store.files import make_durable
from .contents import contents_in, room_for_contents, take_contents
from .databases import copy_database, forget_files, size_of_database, sizes_of_files

logger = logging.getLogger(__name__)
_TRIES = 3


def copy_batches(folder: Path, target: Path) -> None:
    """Copy the batches in the data folder ``folder`` into the folder ``target``.

    Contents are taken before the database is, and those that came meanwhile after it: what is deleted in between is
    there all the same. A file that came after the one look and went before the other is forgotten in the copy, as it
    is in the original; of others that have no content the log tells. Raises StoreError and OSError.
    """
    missing: set[str] = set()
    for _ in range(_TRIES):
        missing = _try(folder, target)
        if not missing:
            break
    else:
        gone = missing - sizes_of_files(folder / DATABASE_NAME).keys()
        forget_files(target / DATABASE_NAME, gone)
        if lost := missing - gone:
            logger.warning("%d files of batches have no content, and so has their copy: %s …", len(lost), min(lost))
    make_durable(target / FOLDER_NAME)


def _try(folder: Path, target: Path) -> set[str]:
    """Copy; returns the files in the copy's database whose contents could not be had."""
    originals, taken = folder / FOLDER_NAME, target / FOLDER_NAME
    take_contents(originals, taken, contents_in(originals))
    copy_database(folder / DATABASE_NAME, target / DATABASE_NAME)
    known = set(sizes_of_files(target / DATABASE_NAME))
    take_contents(originals, taken, known)
    for name in contents_in(taken) - known:
        (taken / name).unlink()
    return known - contents_in(taken)


def room_for_batches(folder: Path, target: Path) -> int:
    """The bytes that a copy of the batches in ``folder`` takes in the folder ``target``. Raises OSError."""
    return size_of_database(folder / DATABASE_NAME) + room_for_contents(folder / FOLDER_NAME, target)


def contents_missing(folder: Path) -> list[str]:
    """The files of the data folder ``folder`` whose contents are not there, or not of their length.

    Asked twice: a running server may delete a file between the looks at the database and at the folder.
    """
    wrong = _wrong(folder, sizes_of_files(folder / DATABASE_NAME))
    known = sizes_of_files(folder / DATABASE_NAME) if wrong else {}
    return sorted(wrong & known.keys())


def _wrong(folder: Path, sizes: dict[str, int]) -> set[str]:
    return {name for name, size in sizes.items() if _size(folder / FOLDER_NAME / name) != size}


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
