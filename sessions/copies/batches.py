"""The offline lane's part of a copy: its database, and the contents of the files that stand in it.

A content is written once and never changed, so a copy needs no second one: it is another name (a hard link) of the
same, where the file system has such.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ..batches.contents import is_whole
from ..batches.store import DATABASE_NAME, FOLDER_NAME
from .databases import copy_database, sizes_of_files

logger = logging.getLogger(__name__)
_TRIES = 3


def copy_batches(folder: Path, target: Path) -> None:
    """Copy the batches in the data folder ``folder``, if there are any, into the folder ``target``.

    Contents are taken before the database is, and those that came meanwhile after it: what is deleted in between is
    there all the same. Raises StoreError and OSError.
    """
    if not (folder / DATABASE_NAME).exists():
        return
    missing: set[str] = set()
    for _ in range(_TRIES):  # a file that came and went between two looks
        take_contents(folder, target, _names_in(folder / FOLDER_NAME))
        copy_database(folder / DATABASE_NAME, target / DATABASE_NAME)
        known = set(sizes_of_files(target / DATABASE_NAME))
        take_contents(folder, target, known)
        taken = _names_in(target / FOLDER_NAME)
        for name in taken - known:
            (target / FOLDER_NAME / name).unlink()
        missing = known - taken
        if not missing:
            return
    logger.warning("%d files of batches have no content, and so has their copy: %s …", len(missing), min(missing))


def take_contents(folder: Path, target: Path, names: Iterable[str]) -> None:
    """Give ``target`` those of these contents of ``folder`` that it has not, and that are there."""
    (target / FOLDER_NAME).mkdir(mode=0o700, exist_ok=True)
    for name in names:
        source, taken = folder / FOLDER_NAME / name, target / FOLDER_NAME / name
        if not taken.exists():
            try:
                _link_or_copy(source, taken)
            except FileNotFoundError:
                continue  # deleted this moment


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


def _names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if is_whole(path)} if folder.exists() else set()


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
        os.chmod(target, 0o600)
