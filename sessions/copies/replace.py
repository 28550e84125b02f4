"""What stands in a data folder, exchanged for what a copy has: all of it, or nothing."""

from __future__ import annotations

import enum
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

from ..batches.store import DATABASE_NAME as BATCHES
from ..batches.store import FOLDER_NAME as FILES
from ..store.files import DATABASE_NAME as SESSIONS
from ..store.files import make_durable
from ..store.moves import Move, is_begun, move_together
from .contents import take_contents
from .databases import sizes_of_files


class Part(enum.StrEnum):
    """What can be brought back by itself."""

    SESSIONS = "sessions"
    BATCHES = "batches"

    @property
    def database(self) -> str:
        """The name of its database."""
        return SESSIONS if self is Part.SESSIONS else BATCHES


ALL = tuple(Part)


def put_in_place(sources: Mapping[Part, Path], folder: Path, now_s: int) -> Path:
    """Put each part's copy in its place in ``folder``; returns the folder that what was there was moved to.

    All is written, and durable, under other names before anything is moved. Raises OSError, and then all is as it was.
    A process that is killed leaves what was there, or what the next start makes the copy's.
    """
    with ExitStack() as left_over:
        for part, source in sources.items():
            left_over.callback(_remove_fresh, part, folder)
            _remove_fresh(part, folder)
            _prepare(part, source, folder)
        make_durable(folder)
        aside = _name_aside(folder, now_s)
        left_over.callback(_remove_if_empty, aside)
        aside.mkdir(mode=0o700)
        move_together(folder, [move for part in sources for move in _moves(part, folder, aside.name)])
    return aside


def _fresh(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _prepare(part: Part, source: Path, folder: Path) -> None:
    if part is Part.BATCHES:
        files = _fresh(folder / FILES)
        take_contents(source / FILES, files, sizes_of_files(source / BATCHES))
        make_durable(files)
    database = _fresh(folder / part.database)
    shutil.copyfile(source / part.database, database)
    os.chmod(database, 0o600)
    make_durable(database)


def _remove_fresh(part: Part, folder: Path) -> None:
    if is_begun(folder):  # and could not be undone: the next start needs it
        return
    _fresh(folder / part.database).unlink(missing_ok=True)
    if part is Part.BATCHES:
        shutil.rmtree(_fresh(folder / FILES), ignore_errors=True)


def _name_aside(folder: Path, now_s: int) -> Path:
    names = (f"damaged-{now_s}" if number == 1 else f"damaged-{now_s}-{number}" for number in count(1))
    return next(path for name in names if not (path := folder / name).exists())


def _remove_if_empty(aside: Path) -> None:
    with suppress(OSError):
        aside.rmdir()


def _moves(part: Part, folder: Path, aside: str) -> Iterator[Move]:
    """A write-ahead log goes before its database: it must never stand beside another one than its own."""
    name = part.database
    for beside in (f"{name}-wal", f"{name}-shm"):
        if (folder / beside).exists():
            yield Move(beside, f"{aside}/{beside}")
    for exchanged in (FILES, name) if part is Part.BATCHES else (name,):
        if (folder / exchanged).exists():
            yield Move(exchanged, f"{aside}/{exchanged}")
        yield Move(_fresh(folder / exchanged).name, exchanged)
