"""The file of API keys: written by ``sessile keys``, read by the running server, which takes over each change."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ...sessions.errors import ConfigError
from .api_key import ApiKey

FILE_NAME = "keys.json"


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    keys: list[ApiKey]


class KeyFile:
    """``keys.json`` in the data folder, for its owner's eyes only. A change is a new file in the old one's place."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / FILE_NAME

    def read(self) -> list[ApiKey]:
        """All keys, revoked ones included; none if there is no file. Raises ConfigError if it cannot be read."""
        try:
            document = msgspec.json.decode(self.path.read_bytes(), type=_Document)
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            raise ConfigError(
                f"the API keys in {self.path} cannot be read: {error}",
                field="data_dir",
                remedy="restore the file from a backup; removing it removes all keys",
            ) from error
        if document.version != 1:
            raise ConfigError(
                f"the API keys in {self.path} have version {document.version}, this server reads 1",
                field="data_dir",
                remedy="use the server version that wrote them",
            )
        return document.keys

    def change(self, change: Callable[[list[ApiKey]], list[ApiKey]]) -> None:
        """Replace the keys by ``change`` of them. Raises ConfigError if the file cannot be read or written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._locked():
                self._write(msgspec.json.encode(_Document(1, change(self.read()))))
        except OSError as error:
            raise ConfigError(
                f"the API keys in {self.path} cannot be written: {error.strerror}",
                field="data_dir",
                remedy="give --data-dir a folder that this user can write",
            ) from error

    def stamp(self) -> tuple[int, int, int] | None:
        """Changes when the file does; None if there is none."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, content: bytes) -> None:
        descriptor, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".keys-")  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise
