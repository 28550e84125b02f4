"""Source files: their text as it is analysed, and the bytes that they become when edits are applied."""

from __future__ import annotations

import codecs
import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

from .errors import UnusableInput
from .findings import Edit

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CARRIAGE = re.compile("\r\n")


@dataclass(frozen=True)
class SourceFile:
    """A file as it was read. `raw` has the line ends of the file; a byte order mark is kept apart."""

    raw: str
    encoding: str = "utf-8"
    mark: bytes = b""

    @cached_property
    def text(self) -> str:
        """The text with every line end as a newline."""
        return self.raw.replace("\r\n", "\n").replace("\r", "\n")

    def with_edits(self, edits: Iterable[Edit]) -> SourceFile:
        """The file with edits applied that are places in `text`, in their order and free of overlap."""
        pieces, position = [], 0
        for edit in edits:
            start, end = self._in_raw(edit.start), self._in_raw(edit.end)
            pieces += [self.raw[position:start], edit.text]
            position = end
        return SourceFile("".join([*pieces, self.raw[position:]]), self.encoding, self.mark)

    def content(self) -> bytes:
        """The bytes of the file."""
        return self.mark + self.raw.encode(self.encoding)

    @cached_property
    def _pairs(self) -> list[int]:
        """Where in `text` the newlines stand that are two characters in the file."""
        return [match.start() - i for i, match in enumerate(_CARRIAGE.finditer(self.raw))]

    def _in_raw(self, position: int) -> int:
        return position + bisect_right(self._pairs, position - 1)


def source_of(name: str, content: bytes) -> SourceFile:
    """Decode a source: UTF-8, UTF-16 with a byte order mark, and for Python what its first lines declare.

    Raises: UnusableInput for bytes that are not of that encoding.
    """
    try:
        if content[:2] in _UTF16:
            encoding = "utf-16-le" if content[:2] == codecs.BOM_UTF16_LE else "utf-16-be"
            return SourceFile(content[2:].decode(encoding), encoding, content[:2])
        mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
        encoding = _declared(content) if PurePath(name).suffix == ".py" and not mark else "utf-8"
        return SourceFile(content[len(mark) :].decode(encoding), encoding, mark)
    except (UnicodeDecodeError, SyntaxError) as error:
        raise UnusableInput(name, f"cannot be read: {error}") from error


def _declared(content: bytes) -> str:
    """The encoding that a Python source declares, else UTF-8. Raises: SyntaxError for an unknown one."""
    lines = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(lines).readline)
    return encoding


def read_source(path: Path) -> SourceFile:
    """Read a source file. Raises: UnusableInput."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnusableInput(str(path), f"cannot be read: {error.strerror}") from error
    return source_of(str(path), content)
