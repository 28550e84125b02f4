"""Copies of the data folder's databases, to go back to when one is damaged.

A copy is a folder, laid out as the data folder is. It is made beside the running server, checked, and only then takes
its name: what stands there is good. The newest two are kept.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ..batches.store import DATABASE_NAME as BATCHES
from ..errors import StoreError
from ..store.files import DATABASE_NAME as SESSIONS
from .batches import copy_batches
from .databases import copy_database

FOLDER_NAME = "copies"
EVERY_S = 6 * 3600.0
KEPT = 2
_SPARE = 1.2  # of the databases' size, on the disk, before a copy is begun


class DataCopies:
    """The copies in a data folder. ``clock``: seconds since the epoch."""

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
        """Copy the databases as they stand, while others use them; drops what is older than the newest ``KEPT``.

        Batches are copied before sessions: what a line's result names, a response that is kept, is in the copy too.

        Raises:
            StoreError: there is no room, a database cannot be read, or its copy has damage.
        """
        unfinished = self._folder / "unfinished"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            shutil.rmtree(unfinished, ignore_errors=True)
            self._require_room()
            unfinished.mkdir(mode=0o700)
            copy_batches(self._data_folder, unfinished)
            copy_database(self._data_folder / SESSIONS, unfinished / SESSIONS)
            os.utime(unfinished / SESSIONS, (self._clock(), self._clock()))
            made = unfinished.rename(self._folder / f"{self._next_stamp():015d}")
        except OSError as error:
            raise StoreError(
                f"no copy of the data can be made in {self._folder}: {error.strerror}",
                remedy="make room, or make the folder writable",
            ) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        for old in self.all()[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
        return made

    def _next_stamp(self) -> int:
        """Milliseconds since the epoch, and more than any copy has: the clock may have been set back."""
        newest = next(iter(self.all()), None)
        last = 0 if newest is None else int(newest.name)
        return max(int(self._clock() * 1000), last + 1)

    def _require_room(self) -> None:
        batches = self._data_folder / BATCHES
        size = (self._data_folder / SESSIONS).stat().st_size + (batches.stat().st_size if batches.exists() else 0)
        needed = size * _SPARE
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise StoreError(
                f"no copy of the data is made: it needs {needed / 2**20:.0f} MiB, {free / 2**20:.0f} are free",
                remedy=f"free space for {self._folder}",
            )


def made_at(copy: Path) -> float:
    """When a copy was made, in seconds since the epoch."""
    return (copy / SESSIONS).stat().st_mtime


def size_of(copy: Path) -> int:
    """Bytes of all files of a copy, those included that it shares with the data folder."""
    return sum(path.stat().st_size for path in copy.rglob("*") if path.is_file())
