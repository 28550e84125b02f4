"""Calls as Mistral's models write them.

``[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]``, or since 2025 ``[TOOL_CALLS]name[ARGS]{…}`` for each call, also
with ``[CALL_ID]…`` before its arguments.
"""

from __future__ import annotations

from .call_reader import CallReader
from .feed import Reading
from .json_reader import WHITESPACE, CallError, ended_inside
from .streaming import StreamingParser

OPEN, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class MistralParser(StreamingParser):
    """Both forms."""

    def _read(self) -> Reading[None]:
        while (yield from self._text_until(OPEN)):
            yield from self._attempt(None, self._read_call, lambda: self._up_to(OPEN))

    def _read_call(self, reader: CallReader) -> Reading[None]:
        yield from self._feed.accept(OPEN)
        yield from self._feed.skip(WHITESPACE)
        match (yield from self._feed.peek()):
            case "":
                raise ended_inside()
            case "[" | "{":
                yield from reader.read()
            case _:
                yield from self._read_named(reader)

    def _read_named(self, reader: CallReader) -> Reading[None]:
        name = ""
        while (character := (yield from self._feed.peek())) and (character.isalnum() or character in "_-.:/"):
            name += self._feed.consume(1)
        if not name:
            raise CallError(f"{character!r} where a name should be")
        yield from self._feed.skip(WHITESPACE)
        if (yield from self._feed.accept(CALL_ID)):
            yield from self._up_to(ARGUMENTS)
        yield from self._feed.accept(ARGUMENTS)
        yield from self._feed.skip(WHITESPACE)
        yield from reader.read_arguments(name)
