"""What stands in a data folder, exchanged for what a copy has: all of it, or nothing."""

from __future__ import annotations

import enum
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

from ..batches.store import DATABASE_NAME as BATCHES
from ..batches.store import FOLDER_NAME as FILES
from ..store.files import DATABASE_NAME as SESSIONS
from ..store.files import make_durable
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
    """
    with ExitStack() as left_over:
        for part, source in sources.items():
            left_over.callback(_remove_fresh, part, folder)
            _remove_fresh(part, folder)
            _prepare(part, source, folder)
        make_durable(folder)
        aside = _new_folder_aside(folder, now_s)
        with ExitStack() as undo:
            undo.callback(_remove_if_empty, aside)
            for part in sources:
                _exchange(part, folder, aside, undo)
            make_durable(aside)
            make_durable(folder)
            undo.pop_all()
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
    _fresh(folder / part.database).unlink(missing_ok=True)
    if part is Part.BATCHES:
        shutil.rmtree(_fresh(folder / FILES), ignore_errors=True)


def _new_folder_aside(folder: Path, now_s: int) -> Path:
    for number in count(1):
        aside = folder / (f"damaged-{now_s}" if number == 1 else f"damaged-{now_s}-{number}")
        with suppress(FileExistsError):
            aside.mkdir(mode=0o700)
            return aside
    raise AssertionError("numbers do not end")


def _remove_if_empty(aside: Path) -> None:
    with suppress(OSError):
        aside.rmdir()


def _exchange(part: Part, folder: Path, aside: Path, undo: ExitStack) -> None:
    """The database comes last, and there always is one: without any, the next start would make an empty one.

    Its write-ahead log goes first: it must never stand beside another database than its own.
    """
    name = part.database
    for beside in (f"{name}-wal", f"{name}-shm"):
        _move(folder / beside, aside / beside, undo)
    if part is Part.BATCHES:
        _move(folder / FILES, aside / FILES, undo)
        _move(_fresh(folder / FILES), folder / FILES, undo)
    _keep(folder / name, aside / name, undo)
    if (aside / name).exists():
        _fresh(folder / name).replace(folder / name)  # undone when the old one takes its name back
    else:
        _move(_fresh(folder / name), folder / name, undo)


def _move(source: Path, target: Path, undo: ExitStack) -> None:
    with suppress(FileNotFoundError):
        source.replace(target)
        undo.callback(target.replace, source)


def _keep(source: Path, target: Path, undo: ExitStack) -> None:
    """Give a file a second name, by which it is there when another one takes its first."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        return
    except OSError:  # a file system without hard links
        _move(source, target, undo)
    else:
        undo.callback(_take_back, source, target)


def _take_back(source: Path, target: Path) -> None:
    target.replace(source)
    target.unlink(missing_ok=True)  # both are names of one file: nothing was replaced
