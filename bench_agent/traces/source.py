"""How trace files are read: line by line, with the number of a broken line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ..errors import TraceError

_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last: nested too deeply


class BadLines:
    """What happens to a line that cannot be used: an error, or (``skip``) it is left out and remembered."""

    def __init__(self, *, skip: bool = False) -> None:
        self._skip = skip
        self.skipped: list[str] = []

    def found(self, path: Path, line: int, reason: str) -> None:
        """Raises TraceError unless bad lines are skipped."""
        error = TraceError(path, line, reason, remedy="repair it, or pass --skip-bad to leave such lines out")
        if not self._skip:
            raise error
        self.skipped.append(f"{path.name}:{line}: {reason}")

    @contextmanager
    def leaving_out(self, path: Path, line: int) -> Iterator[None]:
        """What is done inside is left out from where the line turns out not to be usable: see ``found``."""
        try:
            yield
        except UNUSABLE as error:
            self.found(path, line, reason_of(error))


class Unusable(Exception):
    """A line or an object lacks what its format needs; the reader's loop adds file and line."""


# The others are what reading a field of another type raises, or of a number that is none.
UNUSABLE = (Unusable, AttributeError, TypeError, LookupError, ValueError, OverflowError, RecursionError)


def reason_of(error: Exception) -> str:
    """Why a line cannot be used, for its reader."""
    return str(error) if isinstance(error, Unusable) else f"a field has another type or an impossible value ({error})"


def json_lines(path: Path, bad: BadLines) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line's number and object; empty lines are passed over."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            try:
                row = msgspec.json.decode(raw)
            except _NOT_JSON as error:
                bad.found(path, number, f"not JSON: {error}")
                continue
            if not isinstance(row, dict):
                bad.found(path, number, "not a JSON object")
                continue
            yield number, row


def json_document(path: Path) -> Any:
    """The one JSON value of a file. Raises TraceError."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except _NOT_JSON as error:
        raise TraceError(path, 0, f"not JSON: {error}") from None


def json_rows(path: Path, bad: BadLines) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON array, of one JSON object, or of JSON lines, whichever the file holds."""
    if path.suffix in (".jsonl", ".ndjson") or _is_lines(path):
        yield from json_lines(path, bad)
        return
    document = json_document(path)
    for number, row in enumerate(document if isinstance(document, list) else [document], 1):
        if isinstance(row, dict):
            yield number, row
        else:
            bad.found(path, number, f"entry {number} is not a JSON object")


def first_object(path: Path) -> Any:
    """The first JSON value of a file, None when there is none: what formats are recognised by."""
    with path.open("rb") as file:
        for raw in file:
            if raw.strip():
                try:
                    return msgspec.json.decode(raw)
                except _NOT_JSON:
                    break
    try:
        return msgspec.json.decode(path.read_bytes())
    except _NOT_JSON:
        return None


def _is_lines(path: Path) -> bool:
    """Whether the first line is an object by itself and others follow."""
    with path.open("rb") as file:
        lines = [raw for raw in file if raw.strip()][:2]
    try:
        return len(lines) == 2 and isinstance(msgspec.json.decode(lines[0]), dict)
    except _NOT_JSON:
        return False


def files_of(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The file, or the files below a folder with such a suffix, by name. Raises TraceError when there is none."""
    if path.is_file():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(suffixes))
    if not found:
        raise TraceError(path, 0, "no trace file here" if path.is_dir() else "no such file or folder")
    return found


def sha256_of(paths: list[Path]) -> str:
    """One hash over the bytes of all files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def seconds_of(stamp: object) -> float | None:
    """Seconds since the epoch of an ISO 8601 text; None for anything else."""
    if not isinstance(stamp, str):
        return None
    try:
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def number_of(value: object) -> float | None:
    """A number, or None; a bool is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
