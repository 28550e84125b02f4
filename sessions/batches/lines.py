"""The input of a batch: one request a line, as JSON. What is wrong with it is told with the line's number."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ..malformed_json import BYTE_ORDER_MARK, malformed
from .batch import LineProblem
from .failures import InputLost, InputUnreadable

MOST_PROBLEMS = 100  # that are told; a file with more is as bad


class BatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """A request. ``number``: of its line, from 1."""

    number: int
    custom_id: str
    body: bytes


class _Sent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _BadLine(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


_NAMED = re.compile(r"(?:`\$\.|unknown field `)(?P<field>\w+)")  # what the decoder says of a field
_FIELDS = msgspec.json.Decoder(_Sent)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class BatchInput:
    """The file at ``path``, named by its id and ``num_bytes`` long when it was sent, whose lines ask for ``endpoint``;
    a line has ``max_line_bytes`` at most.

    Lines of white space are passed over. Reading blocks, and raises InputLost where the file is gone or is not what was
    sent, and InputUnreadable where it cannot be read.
    """

    def __init__(self, path: Path, num_bytes: int, endpoint: str, max_line_bytes: int) -> None:
        self._path = path
        self._num_bytes = num_bytes
        self._endpoint = endpoint
        self._max_line_bytes = max_line_bytes

    def check(self, max_lines: int) -> tuple[int, tuple[LineProblem, ...]]:
        """How many requests there are, and what is wrong with them."""
        problems: list[LineProblem] = []
        first_lines: dict[str, int] = {}
        count = 0
        with self._disk_errors(), closing(self._texts()) as texts:
            for number, text in texts:
                count += 1
                if count > max_lines:
                    message = f"the file has more than {max_lines} requests (--batches-max-lines)"
                    return count, (LineProblem(code="too_many_lines", message=message, line=number),)
                try:
                    line = self._read(number, text)
                    first = first_lines.setdefault(line.custom_id, number)
                    if first != number:
                        raise _BadLine(
                            "duplicate_custom_id", f"custom_id {line.custom_id!r} is that of line {first}", "custom_id"
                        )
                except _BadLine as bad:
                    problems.append(LineProblem(code=bad.code, message=bad.message, line=number, param=bad.param))
                    if len(problems) == MOST_PROBLEMS:
                        break
        if not count:
            problems.append(LineProblem(code="empty_file", message="the file has no requests"))
        return count, tuple(problems)

    def lines(self, but: set[int]) -> Generator[BatchLine, None, None]:
        """The requests of a file that was checked, but those of the lines ``but``; closing it closes the file."""
        with self._disk_errors(), closing(self._texts()) as texts:
            for number, text in texts:
                if number not in but:
                    yield self._checked(number, text)

    def _checked(self, number: int, text: bytes) -> BatchLine:
        try:
            return self._read(number, text)
        except _BadLine as bad:
            what = f"line {number} is not what it was: {bad.message}"
            raise InputLost(self._path.name, what, line=number) from bad

    def _texts(self) -> Generator[tuple[int, bytes], None, None]:
        with self._path.open("rb") as file:
            number = 0
            while text := file.readline(self._max_line_bytes + 2):
                number += 1
                if number == 1:
                    text = text.removeprefix(BYTE_ORDER_MARK)
                if text.strip():
                    yield number, text
                while text and not text.endswith(b"\n"):  # the rest of a line that is too long
                    text = file.readline(self._max_line_bytes)
            if file.tell() != self._num_bytes:
                raise InputLost(self._path.name, f"it has {file.tell()} bytes, {self._num_bytes} were sent")

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise InputLost(self._path.name, "it is not in the server's data folder any more") from error
        except OSError as error:
            raise InputUnreadable(
                f"file {self._path.name} cannot be read: {error.strerror}", remedy="look at the data folder's disk"
            ) from error

    def _read(self, number: int, text: bytes) -> BatchLine:
        if len(text.rstrip(b"\r\n")) > self._max_line_bytes:
            raise _BadLine("line_too_long", f"the line is longer than {self._max_line_bytes} bytes")
        sent = self._decoded(text)
        if not sent.custom_id or len(sent.custom_id) > 512:
            raise _BadLine("invalid_custom_id", "custom_id must have 1 to 512 characters", "custom_id")
        if sent.method != "POST":
            raise _BadLine("invalid_method", f"method is {sent.method[:20]!r}; it must be POST", "method")
        if sent.url != self._endpoint:
            raise _BadLine("mismatched_url", f"url is {sent.url[:80]!r}; the batch's is {self._endpoint}", "url")
        body = bytes(sent.body)
        if not body.startswith(b"{"):
            raise _BadLine("invalid_body", "body must be an object", "body")
        return BatchLine(number=number, custom_id=sent.custom_id, body=body)

    def _decoded(self, text: bytes) -> _Sent:
        try:
            return _FIELDS.decode(text)
        except msgspec.ValidationError as error:
            missing = self._missing(text)
            code = "missing_required_parameter" if missing is not None else "invalid_line"
            named = _NAMED.search(str(error))
            raise _BadLine(code, str(error), missing or (named and named["field"])) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _BadLine("invalid_json_line", str(malformed(text, str(error), "the line"))) from error

    def _missing(self, text: bytes) -> str | None:
        try:
            found: dict[str, Any] = _OBJECT.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return next((field for field in _Sent.__struct_fields__ if field not in found), None)
