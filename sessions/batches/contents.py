"""The contents of files: one file a file, in a folder of their own. Nothing half written ever has its name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ..store.files import make_durable

_UNFINISHED = ".part"


class FileContents:
    """The folder. What ``write`` has returned from survives the end of the process and of the machine.

    Every method raises OSError when the disk fails it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, file_id: str) -> Path:
        """Where the content of a file is."""
        return self._folder / file_id

    def write(self, file_id: str, pieces: Iterable[bytes]) -> int:
        """Write a content; its size in bytes."""
        unfinished = self._folder / f"{file_id}{_UNFINISHED}"
        size = 0
        try:
            with open(unfinished, "wb", opener=_private) as file:
                for piece in pieces:
                    file.write(piece)
                    size += len(piece)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self.path(file_id))
            make_durable(self._folder)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            self.path(file_id).unlink(missing_ok=True)
            raise
        return size

    def remove(self, file_ids: Iterable[str]) -> None:
        """Delete contents. One that somebody is reading can be read to its end."""
        for file_id in file_ids:
            self.path(file_id).unlink(missing_ok=True)

    def remove_all_but(self, file_ids: set[str]) -> int:
        """Delete what no file has: left behind by a process that was killed, or by a write that failed. How many."""
        strangers = [path for path in self._folder.iterdir() if path.name not in file_ids]
        for path in strangers:
            path.unlink()
        return len(strangers)


def is_whole(path: Path) -> bool:
    """Whether a file in the folder is a content, and not one that is being written."""
    return path.suffix != _UNFINISHED


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
