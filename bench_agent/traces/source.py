"""Where a trace's lines lie, what happens to one that cannot be used, and how its fields are read."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import TraceError
from ..workload.plan import MOST_SECONDS, MOST_TOKENS

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, counted from 1, or an entry of a file's one array. ``line`` 0: the file as a whole."""

    path: Path
    line: int = 0
    entry: int | None = None

    def error(self, reason: str, *, remedy: str | None = None) -> TraceError:
        """The error that says what is wrong here."""
        where = "" if self.entry is None else f"entry {self.entry}: "
        return TraceError(self.path, self.line, where + reason, remedy=remedy)

    @property
    def session_name(self) -> str:
        """What a session is called that has no name where it stands."""
        return f"{self.path.stem}-{self.line or self.entry or 1}"

    def __str__(self) -> str:
        place = "" if self.entry is None else f" entry {self.entry}"
        return f"{self.path.name}{f':{self.line}' if self.line else ''}{place}"


@dataclass(slots=True)
class BadLines:
    """What happens to a line that cannot be used: an error, or (``skip``) it is left out and remembered.

    ``remarks`` counts what usable lines hold and a text cannot say (pictures, reasoning), by its name in the plural.
    """

    skip: bool = False
    skipped: list[str] = field(default_factory=list)
    remarks: Counter[str] = field(default_factory=Counter)

    def found(self, place: Place, reason: str) -> None:
        """Raises TraceError unless bad lines are skipped."""
        if not self.skip:
            raise place.error(reason, remedy="repair it, or pass --skip-bad to leave such lines out")
        self.skipped.append(f"{place}: {reason}")

    @contextmanager
    def leaving_out(self, place: Place) -> Iterator[None]:
        """What is done inside is left out from where the line turns out not to be usable: see ``found``."""
        try:
            yield
        except UNUSABLE as error:
            self.found(place, reason_of(error))

    def notes(self) -> tuple[str, ...]:
        """What was left out, in sentences: how many lines, the first of them, and what no text can say."""
        notes: list[str] = []
        if self.skipped:
            notes.append(f"lines left out: {len(self.skipped)}")
            notes += [f"left out: {line}" for line in self.skipped[:_SHOWN]]
        if len(self.skipped) > _SHOWN:
            notes.append(f"left out: {len(self.skipped) - _SHOWN} more")
        notes += [f"not sent: {count} {what}" for what, count in sorted(self.remarks.items())]
        return tuple(notes)


class Unusable(Exception):
    """A line or an object lacks what its format needs; the reader's loop adds file and line."""


# The others are what reading a field of another type raises, or of a number that is none.
UNUSABLE = (Unusable, AttributeError, TypeError, LookupError, ValueError, OverflowError, RecursionError)


def reason_of(error: Exception) -> str:
    """Why a line cannot be used, for its reader."""
    return str(error) if isinstance(error, Unusable) else f"a field has another type or an impossible value ({error})"


def files_of(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The file, or the files below a folder with such a suffix, by name. Raises TraceError when there is none."""
    if path.is_file():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(suffixes))
    if not found:
        where = f"no trace file here ({', '.join(suffixes)})" if path.is_dir() else "no such file or folder"
        raise TraceError(path, 0, where)
    return found


def sha256_of(paths: list[Path]) -> str:
    """One hash over the bytes of all files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def seconds_of(stamp: object) -> float | None:
    """Seconds since the epoch of an ISO 8601 text, in UTC where it names no zone; None for anything else."""
    if not isinstance(stamp, str):
        return None
    try:
        moment = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def number_of(value: object) -> float | None:
    """A number, or None; a bool is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def tokens_of(row: Mapping[str, Any], *keys: str, least: int = 0) -> int | None:
    """The number of tokens under the first of the keys that is there; None without one. Raises Unusable."""
    for key in keys:
        if row.get(key) is None:
            continue
        number = number_of(row[key])
        if number is None or not least <= number <= MOST_TOKENS:
            raise Unusable(f"{key} has to be a number of tokens from {least} to {MOST_TOKENS:,}, not {row[key]!r:.40}")
        return int(number)
    return None


def wait_of(row: Mapping[str, Any], key: str, unit: float) -> float | None:
    """Seconds to wait, from a field in ``unit`` seconds; None where it is not there. Raises Unusable."""
    if row.get(key) is None:
        return None
    number = number_of(row[key])
    if number is None or not 0 <= number * unit <= MOST_SECONDS:
        raise Unusable(f"{key} has to be a time of 0 or more, at most {MOST_SECONDS:,.0f} s, not {row[key]!r:.40}")
    return round(number * unit, 6)


def name_of(row: Mapping[str, Any], keys: tuple[str, ...], default: str) -> str:
    """A session's name: the first of the fields that holds one."""
    for key in keys:
        if isinstance(row.get(key), str | int) and not isinstance(row[key], bool) and row[key] != "":
            return str(row[key])
    return default
