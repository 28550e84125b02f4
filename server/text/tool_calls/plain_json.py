"""Calls as plain JSON objects, ``{"name": …, "parameters": {…}}``: Llama 3's way, and that of models without a format.

Nothing announces such a call but its place at the beginning of a line. It is one only if it names a tool of the
request; other JSON is text.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from .call_reader import CallReader, NotACall
from .feed import Reading, held_back
from .json_reader import WHITESPACE
from .numbers import CallNumbers
from .streaming import StreamingParser

PYTHON_TAG = "<|python_tag|>"
_FENCE = "```"


class PlainJsonParser(StreamingParser):
    """Objects or lists of objects, bare or in a fenced block of code."""

    _mark: str | None = None

    def __init__(self, numbers: CallNumbers, known: Collection[str]) -> None:
        self._known = frozenset(known)
        marks = (_FENCE,) if self._mark is None else (_FENCE, self._mark)
        self._marks = marks
        self._candidate = re.compile("|".join([r"[{\[]", *(re.escape(mark) for mark in marks)]))
        super().__init__(numbers)

    def _read(self) -> Reading[None]:
        while (yield from self._text_until_candidate()):
            marked = self._mark is not None and self._feed.rest.lstrip().startswith(self._mark)
            found = yield from self._attempt(
                None if marked else self._known, self._read_call, lambda: self._up_to("\n")
            )
            if found:
                yield from self._feed.skip(WHITESPACE + ";,")

    def _text_until_candidate(self) -> Reading[bool]:
        """Tell text up to what may be a call and the white space before it; False at the end of the answer."""
        while True:
            rest = self._feed.rest
            at = self._find_candidate(rest)
            if at is not None:
                self._text(self._feed.consume(len(rest[:at].rstrip())))
                return True
            if self._feed.ended:
                self._text(self._feed.consume(len(rest)))
                return False
            certain = rest[: len(rest) - held_back(rest, self._marks)].rstrip()
            self._text(self._feed.consume(len(certain)))
            yield

    def _find_candidate(self, text: str) -> int | None:
        for match in self._candidate.finditer(text):
            if match[0] == self._mark or self._begins_line(text[: match.start()]):
                return match.start()
        return None

    def _begins_line(self, before: str) -> bool:
        _, newline, line = before.rpartition("\n")
        return not line.strip() and (bool(newline) or self._line_is_blank)

    def _read_call(self, reader: CallReader) -> Reading[None]:
        yield from self._feed.skip(WHITESPACE)
        if self._mark is not None:
            yield from self._feed.accept(self._mark)
        fenced = yield from self._feed.accept(_FENCE)
        while fenced and (character := (yield from self._feed.peek())) and (character.isalpha() or character == "_"):
            self._feed.consume(1)
        yield from self._feed.skip(WHITESPACE)
        if fenced and (yield from self._feed.peek()) not in ("{", "["):
            raise NotACall("a block of something else")
        yield from reader.read()
        if fenced:
            yield from self._feed.skip(WHITESPACE)
            yield from self._feed.accept(_FENCE)


class Llama3Parser(PlainJsonParser):
    """Also behind ``<|python_tag|>``, which announces a call: what is none then is malformed."""

    _mark = PYTHON_TAG
