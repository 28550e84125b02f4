"""``turns.jsonl`` while it is written: one turn a line, in the file as soon as the turn is over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType

import msgspec

from ..metrics.records import TurnRecord
from .files import cannot_write


class TurnsFile:
    """Owns the file. When it cannot be written, ``failed`` is set: a full disk ends a run, in order."""

    def __init__(self, path: Path) -> None:
        """Raises BenchError."""
        self.failed = asyncio.Event()
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise cannot_write(path, error) from None

    def __enter__(self) -> TurnsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def keep(self, record: TurnRecord) -> None:
        """One line more, whole or (when the disk is full) cut; nothing comes after a cut one."""
        if self.failed.is_set():
            return
        left = memoryview(msgspec.json.encode(record) + b"\n")
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self.failed.set()
