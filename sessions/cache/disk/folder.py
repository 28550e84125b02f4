"""The disk tier's folder: one server at a time, one folder a model, one quota for all."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
from pathlib import Path

from ...errors import ConfigError

logger = logging.getLogger(__name__)

INDEX_NAME = "index.log"
_LOCK_NAME = "LOCK"
_NAMESPACE = re.compile(r"[0-9a-f]{32}")


class DataFolder:
    """Holds the folder's lock from its making to ``close``."""

    def __init__(self, path: Path) -> None:
        """Take the lock on ``path``, which is made if need be.

        Raises:
            ConfigError: another server holds it, or the folder cannot be made or written.
        """
        self.path = path
        try:
            self._descriptor = _lock(path)
        except BlockingIOError as error:
            raise ConfigError(
                f"another server (process {_holder(path)}) uses the disk tier in {path}",
                field="engine.disk_path",
                remedy="give each server a folder of its own, or stop the other one",
            ) from error
        except OSError as error:
            raise ConfigError(
                f"the disk tier cannot use {path}: {error}",
                field="engine.disk_path",
                remedy="name a folder that this user may write, or set engine.disk_quota_bytes to 0",
            ) from error

    def renew(self) -> None:
        """Make the folder and take its lock again after somebody deleted it. Raises: OSError."""
        if os.fstat(self._descriptor).st_nlink == 0:
            descriptor = _lock(self.path)
            os.close(self._descriptor)
            self._descriptor = descriptor

    def namespace(self, fingerprint: bytes) -> Path:
        """The folder of the model with ``fingerprint``. Raises: OSError: it cannot be made."""
        folder = self.path / fingerprint.hex()[:32]
        folder.mkdir(exist_ok=True)
        return folder

    def make_room(self, own: Path, bytes_for_others: int) -> None:
        """Delete other models' folders, the one written to longest ago first, until they take ``bytes_for_others``."""
        others = [folder for folder in self.path.iterdir() if folder != own and _NAMESPACE.fullmatch(folder.name)]
        sizes = {folder: _size(folder) for folder in others}
        for folder in sorted(others, key=_last_written):
            if sum(sizes.values()) <= bytes_for_others:
                return
            logger.info("deleting %s, another model's blocks, to stay within the quota of the disk tier", folder)
            shutil.rmtree(folder, ignore_errors=True)
            del sizes[folder]

    def close(self) -> None:
        os.close(self._descriptor)


def _lock(path: Path) -> int:
    """The descriptor that holds the lock on ``path``. Raises: BlockingIOError: somebody has it; OSError."""
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:  # a full disk: the lock holds all the same, only its message does not say by whom
        logger.warning("cannot write to %s: %s", path / _LOCK_NAME, error)
    return descriptor


def _holder(path: Path) -> str:
    """Who signed the lock, as well as can be said."""
    try:
        return (path / _LOCK_NAME).read_text(errors="replace").strip() or "unknown"
    except OSError:
        return "unknown"


def _size(folder: Path) -> int:
    """Bytes on the disk."""
    return sum(512 * entry.stat().st_blocks for entry in os.scandir(folder))


def _last_written(folder: Path) -> float:
    try:
        return (folder / INDEX_NAME).stat().st_mtime
    except OSError:
        return 0.0
