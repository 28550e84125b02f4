"""Calls written as JSON objects, told as they are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from .deltas import AnswerPiece, ToolCallArguments, ToolCallStarted
from .feed import Feed, Reading, Tap
from .json_reader import WHITESPACE, CallError, expect, read_colon, read_string, read_value
from .numbers import CallNumbers

_ARGUMENTS = ("arguments", "parameters")
_ORDINARY = ("name", "function", "type", "id", *_ARGUMENTS)


class NotACall(CallError):
    """JSON that is not a call of a tool; only where nothing but its content can tell."""


class _Call:
    """What is known of the call that is being read."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.arguments: str | None = None  # read before the name, or written as a string
        self.index: int | None = None  # once it was told


class CallReader:
    """Reads calls from a feed and tells them to ``out``.

    ``known``: the names of the request's tools, where an object is a call only if it names one of them; None where a
    mark has announced a call, so that anything else is an error.
    """

    def __init__(self, feed: Feed, out: list[AnswerPiece], numbers: CallNumbers, known: Collection[str] | None) -> None:
        self._feed = feed
        self._out = out
        self._numbers = numbers
        self._known = known
        self._call = _Call()
        self.on_finished: Callable[[], object] = lambda: None  # called behind each call
        self._open: tuple[int, Tap] | None = None  # arguments that are being read

    @property
    def started(self) -> int | None:
        """The number of the call that was told and is not finished."""
        return self._call.index

    @property
    def is_call(self) -> bool:
        """Whether what is being read is meant as a call, so that an error in it is worth a word."""
        return self._known is None or self._call.name is not None

    def tell_arguments(self) -> None:
        """Tell the arguments consumed so far."""
        if self._open is not None:
            index, tap = self._open
            if fragment := self._feed.collected(tap):
                self._out.append(ToolCallArguments(index=index, fragment=fragment))

    def read(self) -> Reading[None]:
        """One call, or a list of calls. Raises CallError for anything else."""
        if (yield from self._feed.peek()) != "[":
            yield from self.read_object()
            return
        self._feed.consume(1)
        while True:
            yield from self._feed.skip(WHITESPACE)
            if self._known is not None and (yield from self._feed.peek()) != "{":
                raise NotACall("a list of something else")
            yield from self.read_object()
            yield from self._feed.skip(WHITESPACE)
            if (yield from expect(self._feed, ",]")) == "]":
                return

    def read_object(self) -> Reading[None]:
        """One call as an object with its name and its arguments."""
        self._call = call = _Call()
        yield from self._read_fields(call)
        self._finish(call)

    def read_arguments(self, name: str) -> Reading[None]:
        """The arguments of a call whose name stood before them."""
        self._call = call = _Call()
        call.name = name
        yield from self._read_arguments(call)
        self._finish(call)

    def _read_fields(self, call: _Call) -> Reading[None]:
        yield from expect(self._feed, "{")
        yield from self._feed.skip(WHITESPACE)
        while True:
            key = yield from read_string(self._feed)
            if self._known is not None and key not in _ORDINARY:
                raise NotACall(f"a field {key!r}")
            yield from read_colon(self._feed)
            yield from self._read_field(call, key)
            yield from self._feed.skip(WHITESPACE)
            if (yield from expect(self._feed, ",}")) == "}":
                return
            yield from self._feed.skip(WHITESPACE)

    def _read_field(self, call: _Call, key: str) -> Reading[None]:
        following = yield from self._feed.peek()
        if key == "name" or (key == "function" and following == '"'):
            yield from self._read_name(call)
        elif key in _ARGUMENTS:
            yield from self._read_arguments(call)
        elif key == "function" and following == "{":
            yield from self._read_fields(call)
        else:
            yield from read_value(self._feed)

    def _read_name(self, call: _Call) -> Reading[None]:
        if call.name is not None:
            raise CallError("the call has two names")
        if (yield from self._feed.peek()) != '"':
            raise CallError("the name is not a string")
        name = yield from read_string(self._feed)
        if self._known is not None and name not in self._known:
            raise NotACall(f"there is no tool {name!r}")
        if not name.strip():
            raise CallError("the name is empty")
        call.name = name

    def _read_arguments(self, call: _Call) -> Reading[None]:
        if call.index is not None or call.arguments is not None:
            raise CallError("the call has arguments twice")
        match (yield from self._feed.peek()):
            case "{" if call.name is not None:
                yield from self._stream_arguments(call)
            case "{":
                tap = self._feed.tap()
                try:
                    yield from read_value(self._feed)
                finally:
                    call.arguments = self._feed.close_tap(tap)
            case '"':
                call.arguments = _as_object((yield from read_string(self._feed)))
            case "n":
                yield from read_value(self._feed)
                call.arguments = "{}"
            case _:
                raise CallError("the arguments are not an object")

    def _stream_arguments(self, call: _Call) -> Reading[None]:
        index = self._start(call)
        self._open = (index, self._feed.tap())
        try:
            yield from read_value(self._feed)
            self.tell_arguments()
        finally:
            self._feed.close_tap(self._open[1])
            self._open = None

    def _start(self, call: _Call) -> int:
        if call.name is None:
            raise CallError("the call has no name")
        index, call_id = self._numbers.take()
        self._out.append(ToolCallStarted(index=index, id=call_id, name=call.name))
        call.index = index
        return index

    def _finish(self, call: _Call) -> None:
        if call.index is None:
            if self._known is not None and (call.name is None or call.arguments is None):
                raise NotACall("an object without a name and arguments")
            index = self._start(call)
            self._out.append(ToolCallArguments(index=index, fragment=call.arguments or "{}"))
        self._call = _Call()
        self.on_finished()


def _as_object(text: str) -> str:
    """Arguments that were written as a string. Raises CallError unless they are an object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CallError(f"the arguments are a string that is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise CallError("the arguments are not an object")
    return text
