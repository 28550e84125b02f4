"""Bytes to JSON records with their line numbers, streamed; errors name the line."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import msgspec

from ..errors import UnusableInput

_HEAD = 1 << 16
_MOST_DOCUMENT = 1 << 29
_MOST_ERRORS = 20
_DECODER = msgspec.json.Decoder()
_HALF_PAIR = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON value and the line where it starts."""

    line: int
    value: Any


@dataclass(slots=True)
class Errors:
    """Records that could not be read and were stepped over: the first ones, and how many followed."""

    first: list[UnusableInput] = field(default_factory=list)
    more: int = 0

    def add(self, error: UnusableInput) -> None:
        """Note one."""
        if len(self.first) < _MOST_ERRORS:
            self.first.append(error)
        else:
            self.more += 1

    def told(self) -> Iterator[UnusableInput]:
        """The first ones, and one error for the rest."""
        yield from self.first
        if self.more:
            yield UnusableInput(self.first[-1].file, f"{self.more} more records cannot be read")


@dataclass(slots=True)
class Source:
    """An opened input: its name, its first bytes, and the stream that still yields all of it."""

    name: str
    stream: IO[bytes]
    head: bytes = b""
    errors: Errors = field(default_factory=lambda: Errors())

    def peek(self) -> bytes:
        """The first bytes; may be called once before reading."""
        self.head = self.stream.read(_HEAD)
        return self.head

    def lines(self) -> Iterator[bytes]:
        """All lines, the peeked ones first."""
        rest = self.head
        while True:
            *whole, rest = rest.split(b"\n")
            yield from whole
            chunk = self.stream.read(1 << 20)
            if not chunk:
                break
            rest += chunk
        if rest:
            yield rest

    def whole(self) -> bytes:
        """Everything. Raises: UnusableInput for a document that is too large to hold."""
        rest = self.stream.read(_MOST_DOCUMENT)
        if len(rest) == _MOST_DOCUMENT:
            raise UnusableInput(self.name, "the JSON document is too large; give it as one record a line")
        return self.head + rest


def json_lines(source: Source) -> Iterator[Record]:
    """One record a line; blank lines are stepped over, and so are lines that are no JSON: those are noted."""
    for number, line in enumerate(source.lines(), 1):
        text = line.strip()
        if not text or (number == 1 and text == b"\xef\xbb\xbf"):
            continue
        try:
            value = decoded(text.removeprefix(b"\xef\xbb\xbf"))
        except UnicodeDecodeError as error:
            source.errors.add(UnusableInput(source.name, f"not UTF-8: {error.reason}", number))
        except (msgspec.DecodeError, RecursionError) as error:
            source.errors.add(UnusableInput(source.name, _what_is_wrong(text, error), number))
        else:
            yield Record(number, value)


def decoded(text: bytes) -> Any:
    """The JSON value of a text, also as Python and JavaScript write it: NaN, and halves of surrogate pairs.

    A half, as cutting a text in the middle of an emoji leaves, becomes a replacement character.
    Raises: msgspec.DecodeError, UnicodeDecodeError, RecursionError.
    """
    try:
        return _DECODER.decode(text)
    except msgspec.DecodeError as error:
        try:
            return _whole_characters(json.loads(text))
        except json.JSONDecodeError:
            raise error from None


def unpacked(value: Any) -> Any:
    """The value, or what a text holds that is JSON; a text that is none, or is nested too deeply, stays one."""
    if isinstance(value, str):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            return decoded(value.encode("utf-8", "replace"))
    return value


def _whole_characters(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF_PAIR.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {_whole_characters(key): _whole_characters(item) for key, item in value.items()}
    return value


def json_document(source: Source) -> Record:
    """The whole file as one JSON value. Raises: UnusableInput with the line."""
    text = source.whole()
    try:
        return Record(1, decoded(text.strip().removeprefix(b"\xef\xbb\xbf")))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableInput(source.name, _what_is_wrong(text, error), _error_line(text, error)) from error


def _error_line(text: bytes, error: Exception) -> int:
    digits = "".join(c for c in str(error).rsplit("(byte ", 1)[-1] if c.isdigit())
    at = int(digits) if digits else len(text)
    return text.count(b"\n", 0, min(at, len(text))) + 1


def _what_is_wrong(text: bytes, error: Exception) -> str:
    if "truncated" in str(error):
        return "cut off: the JSON ends in the middle"
    shown = text[:40].decode("utf-8", "replace")
    return f"not JSON ({error}): {shown!r}"


def text_lines(source: Source) -> Iterator[tuple[int, str]]:
    """Lines of a text file with their numbers."""
    for number, line in enumerate(source.lines(), 1):
        yield number, line.decode("utf-8", "replace").rstrip("\r")
