"""The way back to a copy."""

from __future__ import annotations

import enum
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..batches.store import DATABASE_NAME as BATCHES
from ..batches.store import FOLDER_NAME as FILES
from ..errors import StoreError
from ..store.files import DATABASE_NAME as SESSIONS
from ..store.files import make_durable
from ..store.lock import DataFolderLock
from .batches import take_contents
from .copies import DataCopies
from .databases import require_sound, sizes_of_files

logger = logging.getLogger(__name__)


class Part(enum.StrEnum):
    """What can be brought back by itself."""

    SESSIONS = "sessions"
    BATCHES = "batches"

    @property
    def database(self) -> str:
        """The name of its database."""
        return SESSIONS if self is Part.SESSIONS else BATCHES


ALL = tuple(Part)


def restore_newest(
    folder: Path, clock: Callable[[], float] = time.time, parts: Sequence[Part] = ALL
) -> tuple[Path, Path]:
    """Put the newest copy in which ``parts`` are sound in their place; what was there is moved aside, never deleted.

    A part that the copy has not, because the folder had none when it was made, is left as it is. Returns the copy that
    was used and the folder that holds what was there.

    Raises:
        StoreError: a server uses the folder, or there is no sound copy.
    """
    lock = DataFolderLock(folder)
    try:
        source = _newest_sound(DataCopies(folder, clock), parts)
        aside = folder / f"damaged-{int(clock())}"
        aside.mkdir(mode=0o700)
        for part in parts:
            if (source / part.database).exists():
                _put_back(part, source, folder, aside)
        return source, aside
    except OSError as error:
        raise StoreError(
            f"the data in {folder} cannot be restored: {error.strerror}", remedy="make room, or copy by hand"
        ) from error
    finally:
        lock.release()


def _put_back(part: Part, source: Path, folder: Path, aside: Path) -> None:
    """The database comes last: until it is there, nothing says that its files are."""
    name = part.database
    also = (FILES,) if part is Part.BATCHES else ()
    for moved in (name, f"{name}-wal", f"{name}-shm", *also):
        if (folder / moved).exists():
            (folder / moved).rename(aside / moved)
    if part is Part.BATCHES:
        take_contents(source, folder, sizes_of_files(source / name))
        make_durable(folder / FILES)
    fresh = folder / f"{name}.new"
    shutil.copyfile(source / name, fresh)
    os.chmod(fresh, 0o600)
    make_durable(fresh)
    fresh.rename(folder / name)
    make_durable(folder)


def _newest_sound(copies: DataCopies, parts: Sequence[Part]) -> Path:
    for copy in copies.all():
        present = [part for part in parts if (copy / part.database).exists()]
        try:
            for part in present:
                require_sound(copy / part.database)
        except StoreError as error:
            logger.warning("%s", error)
        else:
            if present:
                return copy
    wanted = " and ".join(parts)
    raise StoreError(f"there is no sound copy of {wanted}", remedy="restore a backup of the data folder")
