"""Copies of the session database, to go back to when it is damaged.

A copy is made beside the running server, checked, and only then takes its name: what stands there is good. The newest
two are kept.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from ..errors import StoreError
from .failures import store_errors
from .files import DATABASE_NAME
from .lock import DataFolderLock

FOLDER_NAME = "copies"
EVERY_S = 6 * 3600.0
KEPT = 2
FIRST_LOOK_S = 60.0  # after the start: by then it is clear that this is no short visit
LOOK_EVERY_S = 600.0
_SPARE = 1.2  # of the database's size, on the disk, before a copy is begun

logger = logging.getLogger(__name__)


class StoreCopies:
    """The copies in a data folder. ``clock``: seconds since the epoch."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._database = folder / DATABASE_NAME
        self._folder = folder / FOLDER_NAME
        self._clock = clock

    def all(self) -> list[Path]:
        """The copies, newest first."""
        return sorted(self._folder.glob("sessions-*.db"), reverse=True)

    def is_due(self) -> bool:
        """The newest copy is older than ``EVERY_S``, or there is none; or it seems to be made later than now."""
        newest = next(iter(self.all()), None)
        return newest is None or not 0.0 <= self._clock() - newest.stat().st_mtime < EVERY_S

    def make(self) -> Path:
        """Copy the database as it stands, while others use it; drops what is older than the newest ``KEPT``.

        Raises:
            StoreError: there is no room, the database cannot be read, or its copy has damage.
        """
        unfinished = self._folder / "unfinished.db"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._require_room()
            unfinished.unlink(missing_ok=True)
            with store_errors(self._database):
                self._copy_to(unfinished)
            require_sound(unfinished)
            os.chmod(unfinished, 0o600)
            made = self._folder / f"sessions-{self._next_stamp():015d}.db"
            os.utime(unfinished, (self._clock(), self._clock()))
            unfinished.rename(made)
        except OSError as error:
            raise StoreError(
                f"no copy of the session store can be made in {self._folder}: {error.strerror}",
                remedy="make room, or make the folder writable",
            ) from error
        for old in self.all()[KEPT:]:
            old.unlink(missing_ok=True)
        return made

    def _next_stamp(self) -> int:
        """Milliseconds since the epoch, and more than any copy has: the clock may have been set back."""
        newest = next(iter(self.all()), None)
        last = 0 if newest is None else int(newest.stem.removeprefix("sessions-"))
        return max(int(self._clock() * 1000), last + 1)

    def _require_room(self) -> None:
        needed = self._database.stat().st_size * _SPARE
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise StoreError(
                f"no copy of the session store is made: it needs {needed / 2**20:.0f} MiB, {free / 2**20:.0f} are free",
                remedy=f"free space for {self._folder}",
            )

    def _copy_to(self, target: Path) -> None:
        source = f"{self._database.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(source, uri=True)) as database:
            database.execute("VACUUM INTO ?", [str(target)])  # one snapshot, whatever is written meanwhile


class CopyThread:
    """Makes a copy when one is due, from its start on until ``close``."""

    def __init__(self, copies: StoreCopies) -> None:
        self._copies = copies
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sessile-store-copies", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        wait_s = FIRST_LOOK_S
        while not self._leaving.wait(wait_s):
            wait_s = LOOK_EVERY_S
            try:
                if self._copies.is_due():
                    logger.debug("copied the session store to %s", self._copies.make())
            except (StoreError, OSError) as error:
                logger.warning("%s", error)

    def close(self) -> None:
        """Let a copy in the making end."""
        self._leaving.set()
        self._thread.join()


def require_sound(path: Path) -> None:
    """Read all of a database and check it. Raises StoreError for damage."""
    with store_errors(path), closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        problems = [row[0] for row in database.execute("PRAGMA integrity_check(3)")]
        if problems != ["ok"]:
            raise StoreError(f"{path} is damaged: {'; '.join(problems)}", remedy="use another copy")


def restore_newest(folder: Path, clock: Callable[[], float] = time.time) -> tuple[Path, Path]:
    """Put the newest sound copy in the database's place; what was there is moved aside, never deleted.

    Returns the copy that was used and the folder that holds what was there.

    Raises:
        StoreError: a server uses the folder, or there is no sound copy.
    """
    lock = DataFolderLock(folder)
    try:
        source = _newest_sound(StoreCopies(folder, clock))
        aside = folder / f"damaged-{int(clock())}"
        aside.mkdir(mode=0o700)
        for name in (DATABASE_NAME, f"{DATABASE_NAME}-wal", f"{DATABASE_NAME}-shm"):
            if (folder / name).exists():
                (folder / name).rename(aside / name)
        fresh = folder / f"{DATABASE_NAME}.new"
        shutil.copyfile(source, fresh)
        os.chmod(fresh, 0o600)
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        fresh.rename(folder / DATABASE_NAME)
        return source, aside
    except OSError as error:
        raise StoreError(
            f"the session store in {folder} cannot be restored: {error.strerror}", remedy="make room, or copy by hand"
        ) from error
    finally:
        lock.release()


def _newest_sound(copies: StoreCopies) -> Path:
    for copy in copies.all():
        try:
            require_sound(copy)
        except StoreError as error:
            logger.warning("%s", error)
        else:
            return copy
    raise StoreError("there is no sound copy of the session store", remedy="restore a backup of the data folder")
