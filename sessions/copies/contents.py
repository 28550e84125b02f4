"""Contents of files in a copy.

A content is written once and never changed, so a copy needs no second one: it is another name (a hard link) of the
same, where the file system has such.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..batches.contents import is_whole
from ..store.files import make_durable


def contents_in(folder: Path) -> set[str]:
    """The names of the contents in a folder, if it is there."""
    return {path.name for path in folder.iterdir() if is_whole(path)} if folder.exists() else set()


def take_contents(source: Path, target: Path, names: Iterable[str]) -> None:
    """Give the folder ``target`` those of these contents of the folder ``source`` that it has not, and that are there.

    Each that is copied is durable; for the names, make the folder so. Raises OSError.
    """
    target.mkdir(mode=0o700, exist_ok=True)
    for name in names:
        if not (target / name).exists():
            with suppress(FileNotFoundError):  # deleted this moment
                _link_or_copy(source / name, target / name)


def room_for_contents(source: Path, target: Path) -> int:
    """The bytes that the contents of ``source`` take in the folder ``target``, which is there: none as links.

    Raises OSError.
    """
    trial = target / "trial-of-a-link"
    names = contents_in(source)
    for name in names:
        try:
            os.link(source / name, trial)
        except FileNotFoundError:
            continue  # deleted this moment
        except OSError:
            return sum(bytes_of(source / name) for name in names)
        trial.unlink()
        break
    return 0


def bytes_of(path: Path) -> int:
    """The size of a file; 0 if it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
        os.chmod(target, 0o600)
        make_durable(target)
