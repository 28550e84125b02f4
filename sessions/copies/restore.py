"""The way back to a copy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import StoreError
from ..store.lock import DataFolderLock
from ..store.moves import finish_moves
from .alone import alone
from .copies import FOLDER_NAME as COPIES
from .copies import DataCopies
from .databases import require_sound
from .replace import ALL, Part, put_in_place

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restored:
    """The copy that each part came from, and the folder that holds what was there before."""

    sources: Mapping[Part, Path]
    aside: Path


def restore_newest(folder: Path, clock: Callable[[], float] = time.time, parts: Sequence[Part] = ALL) -> Restored:
    """Put ``parts`` of their newest sound copies in their place; what was there is moved aside, never deleted.

    Batches come from no newer copy than sessions: what a line's result names is there. A part that no such copy has,
    because the folder had none when they were made, is left as it is. What fails before the end changes nothing;
    what is killed is finished by the next start, or by the next restore before its own work.

    Raises:
        StoreError: a server uses the folder, there is no sound copy, or the disk failed.
    """
    lock = DataFolderLock(folder)
    try:
        finish_moves(folder)
        with alone(folder / COPIES):
            sources = _newest_sound(DataCopies(folder, clock).all(), parts)
            return Restored(sources, put_in_place(sources, folder, int(clock())))
    except OSError as error:
        raise StoreError(
            f"the data in {folder} cannot be restored: {error.strerror}",
            remedy="make room, or copy by hand; what is there now is as it was",
        ) from error
    finally:
        lock.release()


def _newest_sound(copies: Sequence[Path], parts: Sequence[Part]) -> dict[Part, Path]:
    """``copies`` are the newest first."""
    sources: dict[Part, Path] = {}
    for part in (part for part in ALL if part in parts):
        having = [copy for copy in copies if (copy / part.database).exists()]
        if not having:
            continue
        sources[part] = _first_sound(having, part)
        copies = copies[copies.index(sources[part]) :]
    if not sources:
        raise _none_sound(" and ".join(parts))
    return sources


def _first_sound(copies: Sequence[Path], part: Part) -> Path:
    for copy in copies:
        try:
            require_sound(copy / part.database)
        except StoreError as error:
            logger.warning("%s", error)
        else:
            return copy
    raise _none_sound(part)


def _none_sound(wanted: str) -> StoreError:
    return StoreError(f"there is no sound copy of {wanted}", remedy="restore a backup of the data folder")
