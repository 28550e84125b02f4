"""One server at a time on a data folder."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from ..errors import StoreError

LOCK_NAME = "sessile.lock"


class DataFolderLock:
    """Held from construction to ``release``, or until the process ends in any way (the kernel lets go of it).

    Raises:
        StoreError: another process holds it, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # conversations are private
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"the data folder {folder} cannot be written: {error.strerror}",
                remedy="make it writable for this user, or name another one with --data-dir",
            ) from error
        try:
            self._acquire(folder)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _acquire(self, folder: Path) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StoreError(
                    f"the data folder {folder} cannot be locked: {error.strerror}",
                    remedy="use a folder on a local file system, named with --data-dir",
                ) from error
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise StoreError(
                f"the data folder {folder} is in use by another server (process {holder})",
                remedy="stop that server, or name another folder with --data-dir",
            ) from error
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        except OSError:
            return  # who holds it is a courtesy to read; a full disk must not keep the sessions from being read

    def release(self) -> None:
        """Let another server have the folder. The file stays: removing it would race with the next holder."""
        os.close(self._descriptor)
