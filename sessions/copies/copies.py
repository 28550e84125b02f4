"""Copies of the data folder's databases, to go back to when one is damaged.

A copy is a folder, laid out as the data folder is. It is made beside the running server, checked, and only then takes
its name: what stands there is good. The newest two are kept, and the newest that has batches.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..batches.store import DATABASE_NAME as BATCHES
from ..errors import StoreError
from ..store.files import DATABASE_NAME as SESSIONS
from ..store.files import make_durable
from ..store.moves import require_ended
from .alone import alone, alone_if_free
from .batches import copy_batches, room_for_batches
from .databases import copy_database, size_of_database

logger = logging.getLogger(__name__)

FOLDER_NAME = "copies"
EVERY_S = 6 * 3600.0
KEPT = 2
_SPARE = 1.2  # of the copy's size, on the disk, before a copy is begun


class DataCopies:
    """The copies in a data folder; several processes may make them. ``clock``: seconds since the epoch."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._data_folder = folder
        self._folder = folder / FOLDER_NAME
        self._clock = clock

    def all(self) -> list[Path]:
        """The copies, newest first."""
        found = self._folder.iterdir() if self._folder.exists() else ()
        return sorted((path for path in found if path.name.isdecimal() and (path / SESSIONS).exists()), reverse=True)

    def is_due(self) -> bool:
        """The newest copy is older than ``EVERY_S``, or there is none; or it seems to be made later than now."""
        newest = next(iter(self.all()), None)
        return newest is None or not 0.0 <= self._clock() - made_at(newest) < EVERY_S

    def make(self) -> Path:
        """Copy the databases as they stand, while others use them; waits for a copy that another process makes.

        Batches are copied before sessions: what a line's result names, a response that is kept, is in the copy too.
        If they cannot be, the log says why, and the sessions are copied without them. Drops what is older than the
        newest ``KEPT``, except the last copy that has batches.

        Raises:
            StoreError: there is no room, the sessions cannot be read, or their copy has damage.
        """
        with self._disk_errors(), alone(self._folder):
            return self._made()

    def make_if_due(self) -> Path | None:
        """``make``, if ``is_due`` and no other process makes one at the moment."""
        with self._disk_errors(), alone_if_free(self._folder) as is_free:
            return self._made() if is_free and self.is_due() else None

    def is_whole(self, made: Path) -> bool:
        """Whether a copy has all that there is: it may have sessions without the batches."""
        return (made / BATCHES).exists() or not (self._data_folder / BATCHES).exists()

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"no copy of the data can be made in {self._folder}: {error.strerror}",
                remedy="make room, or make the folder writable",
            ) from error

    def _made(self) -> Path:
        require_ended(self._data_folder)
        unfinished = self._folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
        try:
            unfinished.mkdir(mode=0o700)
            if (self._data_folder / BATCHES).exists():
                self._add_batches(unfinished)
            self._add_sessions(unfinished)
            make_durable(unfinished)
            made = unfinished.rename(self._folder / f"{self._next_stamp():015d}")
            make_durable(self._folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        self._drop_old()
        return made

    def _add_batches(self, unfinished: Path) -> None:
        """Copy the batches, or leave ``unfinished`` empty."""
        try:
            self._require_room(room_for_batches(self._data_folder, unfinished) + self._sessions_size())
            copy_batches(self._data_folder, unfinished)
        except (StoreError, OSError) as error:
            logger.warning("a copy of the data is made without batches, which could not be copied: %s", error)
            shutil.rmtree(unfinished)
            unfinished.mkdir(mode=0o700)

    def _add_sessions(self, unfinished: Path) -> None:
        self._require_room(self._sessions_size())
        copy_database(self._data_folder / SESSIONS, unfinished / SESSIONS)
        os.utime(unfinished / SESSIONS, (self._clock(), self._clock()))

    def _drop_old(self) -> None:
        copies = self.all()
        last_with_batches = [copy for copy in copies if (copy / BATCHES).exists()][:1]
        for old in copies[KEPT:]:
            if old not in last_with_batches:
                shutil.rmtree(old, ignore_errors=True)

    def _next_stamp(self) -> int:
        """Milliseconds since the epoch, and more than any copy has: the clock may have been set back."""
        newest = next(iter(self.all()), None)
        last = 0 if newest is None else int(newest.name)
        return max(int(self._clock() * 1000), last + 1)

    def _sessions_size(self) -> int:
        return size_of_database(self._data_folder / SESSIONS)

    def _require_room(self, num_bytes: int) -> None:
        needed = num_bytes * _SPARE
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise StoreError(
                f"a copy of the data needs {needed / 2**20:.0f} MiB, {free / 2**20:.0f} are free",
                remedy=f"free space for {self._folder}",
            )


def made_at(copy: Path) -> float:
    """When a copy was made, in seconds since the epoch."""
    return (copy / SESSIONS).stat().st_mtime


def size_of(copy: Path) -> int:
    """Bytes of all files of a copy, those included that it shares with the data folder."""
    return sum(path.stat().st_size for path in copy.rglob("*") if path.is_file())
