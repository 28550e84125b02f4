"""The JSON values of a trace file, each with its place: lines, entries of an array, documents one after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from ..errors import TraceError
from .source import BadLines, Place, Unusable

_BOM = b"\xef\xbb\xbf"
_NO_TEXT = (
    (b"\x1f\x8b", "compressed with gzip", "unpack it first: gunzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it first: zstd -d"),
    (b"\xfd7zXZ", "compressed with xz", "unpack it first: unxz"),
    (b"BZh", "compressed with bzip2", "unpack it first: bunzip2"),
    (b"PK\x03\x04", "a zip archive", "unpack it first: unzip"),
    (b"PAR1", "a Parquet file", "write its rows as JSON lines"),
    (b"\xff\xfe", "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
)
_HALF_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}|\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_BLANKS = re.compile(r"\s*")
_AT_BYTE = re.compile(r"\(byte (\d+)\)")


class NotJson(Exception):
    """Why bytes are no JSON."""


def decoded(raw: bytes) -> Any:
    """One JSON value. Raises NotJson.

    Half of a surrogate pair, which JavaScript writes where it cuts a text, becomes U+FFFD.
    """
    try:
        return msgspec.json.decode(raw)
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not _HALF_PAIR.search(raw):
            raise NotJson(str(error)) from None
    try:
        return _mended(json.loads(raw, parse_constant=_no_number))
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None


def values(path: Path, bad: BadLines) -> Iterator[tuple[Place, Any]]:
    """Each JSON value of a file: one a line, or one or several that are written over many lines. Raises TraceError."""
    if not _may_be_json(path, bad):
        return
    if _is_lines(path):
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield from _value_of_line(Place(path, number), line, bad)
        return
    yield from _documents(path, path.read_bytes().removeprefix(_BOM), bad)


def objects(path: Path, bad: BadLines) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Each JSON object of a file, those in an array among them; any other value is bad."""
    for place, value in values(path, bad):
        if isinstance(value, dict):
            yield place, value
        elif isinstance(value, list) and value:
            yield from _entries(place, value, bad)
        else:
            bad.found(place, "not a JSON object")


def document(path: Path) -> Any:
    """The one JSON value of a file. Raises Unusable where it is none, TraceError when it cannot be read."""
    if not _may_be_json(path, BadLines()):
        return None
    raw = path.read_bytes().removeprefix(_BOM)
    try:
        return decoded(raw)
    except NotJson as error:
        raise Unusable(f"not JSON: {error} (line {_line_of(error, raw)})") from None


def first_values(path: Path, most: int = 50) -> list[Any]:
    """The first JSON values of a file, without what is broken: what formats are recognised by. Raises TraceError."""
    return [value for _, value in islice(values(path, BadLines(skip=True)), most)]


def _may_be_json(path: Path, bad: BadLines) -> bool:
    """Whether a file is text by its first bytes. Raises TraceError when it cannot be read, or is none."""
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise TraceError(path, 0, f"cannot be read: {error.strerror or error}") from None
    for mark, what, remedy in _NO_TEXT:
        if head.startswith(mark):
            if not bad.skip:
                raise TraceError(path, 0, f"{what}, not JSON", remedy=remedy)
            bad.found(Place(path), f"{what}, not JSON")
            return False
    return True


def _value_of_line(place: Place, line: bytes, bad: BadLines) -> Iterator[tuple[Place, Any]]:
    text = line.removeprefix(_BOM) if place.line == 1 else line
    if not text.strip():
        return
    try:
        value = decoded(text)
    except NotJson as error:
        bad.found(place, f"not JSON: {error}")
        return
    yield place, value


def _entries(place: Place, value: list[Any], bad: BadLines) -> Iterator[tuple[Place, dict[str, Any]]]:
    for number, entry in enumerate(value, 1):
        at = Place(place.path, place.line, number)
        if isinstance(entry, dict):
            yield at, entry
        else:
            bad.found(at, "not a JSON object")


def _is_lines(path: Path) -> bool:
    """Whether each line is a value by itself; with a broken first line, if others are, or the file's name says so."""
    with path.open("rb") as file:
        lines = list(islice((line.removeprefix(_BOM) for line in file if line.removeprefix(_BOM).strip()), 3))
    if len(lines) < 2 or _is_value(lines[0]):
        return len(lines) > 1
    if _is_value(path.read_bytes().removeprefix(_BOM)):
        return False
    named = path.suffix in (".jsonl", ".ndjson") and lines[0].strip() not in (b"{", b"[")
    return named or any(_is_value(line) for line in lines[1:])


def _is_value(line: bytes) -> bool:
    """Whether a line is an object or an array by itself."""
    try:
        return isinstance(decoded(line), dict | list)
    except NotJson:
        return False


def _documents(path: Path, raw: bytes, bad: BadLines) -> Iterator[tuple[Place, Any]]:
    """One value, or several that are each written over many lines."""
    try:
        value = decoded(raw)
    except NotJson as error:
        yield from _one_after_the_other(path, raw, error, bad)
        return
    yield Place(path, 0 if isinstance(value, list) else 1), value


def _one_after_the_other(path: Path, raw: bytes, why: NotJson, bad: BadLines) -> Iterator[tuple[Place, Any]]:
    """Values until one is broken, which ends the file: where the next begins cannot be told."""
    text = raw.decode(errors="replace")
    read, at, line = json.JSONDecoder(parse_constant=_no_number), 0, 1
    while (start := _blanks(text, at)) < len(text):
        line += text.count("\n", at, start)
        try:
            _, end = read.raw_decode(text, start)
            value = decoded(text[start:end].encode())
        except (ValueError, RecursionError, NotJson) as error:
            first = start == _blanks(text, 0)
            where = _line_of(why, raw) if first else line
            rest = "" if first else "; the file is read as far as here"
            bad.found(Place(path, where), f"not JSON: {why if first else error}{rest}")
            return
        yield Place(path, line), value
        line += text.count("\n", start, end)
        at = end


def _blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _line_of(error: NotJson, raw: bytes) -> int:
    found = _AT_BYTE.search(str(error))
    end = int(found.group(1)) if found else len(raw.rstrip())
    return 1 + raw[:end].count(b"\n")


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a number of JSON")


def _whole(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _mended(value: Any) -> Any:
    """The value with U+FFFD for each half of a pair."""
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, list):
        return [_mended(entry) for entry in value]
    if isinstance(value, dict):
        return {_whole(key): _mended(entry) for key, entry in value.items()}
    return value
