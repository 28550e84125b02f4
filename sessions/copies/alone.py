"""One maker, dropper or user of copies at a time, in whatever process: the server's thread, or a command beside it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_NAME = "in-use.lock"


@contextmanager
def alone(copies: Path) -> Iterator[None]:
    """Have the folder ``copies``, made if need be, to oneself; waits for who has it. Raises OSError."""
    with _opened(copies) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def alone_if_free(copies: Path) -> Iterator[bool]:
    """Have the folder ``copies`` to oneself, or False at once where somebody else has it. Raises OSError."""
    with _opened(copies) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = True
        except BlockingIOError:
            is_free = False
        try:
            yield is_free
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def _opened(copies: Path) -> Iterator[int]:
    """The file that is locked. It stays: removing it would race with the next holder."""
    copies.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(copies / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
