"""Files of results: whole or not there, and what keeps them from being written in a sentence."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..errors import BenchError


def made_folder(path: Path) -> Path:
    """The folder, made if need be. Raises BenchError when it cannot be made or written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise cannot_write(path, error) from None


def write_whole(path: Path, content: bytes) -> Path:
    """The file with this content; when that fails, it is as it was before. Raises BenchError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            beside.write_bytes(content)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None
    return path


def file_name(label: str) -> str:
    """A label as a name of a file or folder."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in label)
    return name.lstrip(".")[:120] or "result"


def cannot_write(path: Path, error: OSError) -> BenchError:
    """The error that says so, and what to do."""
    return BenchError(
        f"{path} cannot be written: {error.strerror or error}", field="out", remedy="pass another folder as --out"
    )
