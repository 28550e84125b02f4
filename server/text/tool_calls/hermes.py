"""Calls as Hermes and Qwen write them: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

from __future__ import annotations

from .call_reader import CallReader
from .feed import Reading
from .json_reader import WHITESPACE
from .streaming import StreamingParser

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(StreamingParser):
    """A closing mark that is missing is forgiven where the call itself is complete."""

    def _read(self) -> Reading[None]:
        while (yield from self._text_until(OPEN)):
            yield from self._attempt(None, self._read_call, self._rest_of_malformed)

    def _read_call(self, reader: CallReader) -> Reading[None]:
        yield from self._feed.accept(OPEN)
        yield from self._feed.skip(WHITESPACE)
        yield from reader.read()
        yield from self._feed.skip(WHITESPACE)
        yield from self._feed.accept(CLOSE)

    def _rest_of_malformed(self) -> Reading[None]:
        yield from self._up_to(CLOSE)
        yield from self._feed.accept(CLOSE)
