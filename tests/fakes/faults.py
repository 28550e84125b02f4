"""Faults of the disk and jumps of the clock in a real process, switched on and off while it runs (``faults.c``)."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_suffix(".c")
_NUMBERS = struct.Struct("<4i4q")
_FOLDER_BYTES = 1024


class Faults:
    """One control page, for all processes that were started with ``environment``.

    Skips the test where no C compiler is at hand.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._library = folder / "faults.so"
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("there is no C compiler to build the faults with")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", self._library, _SOURCE, "-ldl"], check=True)
        self._control = folder / "control"
        self._control.write_bytes(bytes(_NUMBERS.size + _FOLDER_BYTES))
        with self._control.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 0)

    @property
    def environment(self) -> dict[str, str]:
        """What a process has to be started with."""
        return {"LD_PRELOAD": str(self._library), "FAULTS_CONTROL": str(self._control)}

    def watch(self, folder: Path) -> None:
        """Count, and let fail, what is done to files whose path begins with ``folder``."""
        name = str(folder).encode()
        assert len(name) < _FOLDER_BYTES
        self._page[_NUMBERS.size :] = name.ljust(_FOLDER_BYTES, b"\0")

    @contextmanager
    def failing(self, folder: Path, *, write: int = 0, sync: int = 0, read: int = 0) -> Iterator[None]:
        """Meanwhile, calls on files below ``folder`` fail with these error numbers."""
        self.watch(folder)
        self._set(0, "<3i", write, sync, read)
        try:
            yield
        finally:
            self._set(0, "<3i", 0, 0, 0)

    @contextmanager
    def clock_moved_by(self, seconds: int) -> Iterator[None]:
        """Meanwhile the wall clock is ahead (behind, if negative) by so much; the monotonic clock is not touched."""
        self._set(16, "<q", seconds)
        try:
            yield
        finally:
            self._set(16, "<q", 0)

    @property
    def num_failed(self) -> int:
        """Calls that were made to fail, since the start."""
        return int(self._get(40))

    def _set(self, offset: int, form: str, *values: int) -> None:
        struct.pack_into(form, self._page, offset, *values)

    def _get(self, offset: int) -> int:
        return int(struct.unpack_from("<q", self._page, offset)[0])
