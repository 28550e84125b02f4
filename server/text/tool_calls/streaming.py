"""What the parsers of all formats share: text between calls, and calls that turn out to be none."""

from __future__ import annotations

from collections.abc import Callable, Collection

from .call_reader import CallReader, NotACall
from .deltas import AnswerPiece, MalformedCall
from .feed import Feed, Reading, held_back
from .json_reader import CallError
from .numbers import CallNumbers


class StreamingParser:
    """Runs ``_read``, a reader of the whole answer, on text as it comes.

    White space next to a call is not text of the answer: models put it there to part calls.
    """

    def __init__(self, numbers: CallNumbers) -> None:
        self._feed = Feed()
        self._out: list[AnswerPiece] = []
        self._numbers = numbers
        self.calls_read = 0
        self._after_call = False
        self._line_is_blank = True  # of the text told last
        self._reader: CallReader | None = None
        self._reading = self._read()
        next(self._reading)

    def push(self, text: str) -> list[AnswerPiece]:
        """What became certain with this text."""
        self._feed.push(text)
        if text:
            next(self._reading)
        return self._told()

    def finish(self) -> list[AnswerPiece]:
        """What was held back; the text ends here."""
        self._feed.ended = True
        for _ in self._reading:
            raise AssertionError("a reader waits for text after its end")
        return self._told()

    def _read(self) -> Reading[None]:
        raise NotImplementedError

    def _told(self) -> list[AnswerPiece]:
        if self._reader is not None:
            self._reader.tell_arguments()
        told, self._out[:] = list(self._out), []
        return told

    def _text(self, text: str) -> None:
        """Tell text of the answer."""
        if self._after_call:
            text = text.lstrip()
            self._after_call = not text
        if text:
            _, newline, last_line = text.rpartition("\n")
            self._line_is_blank = not last_line.strip() and (bool(newline) or self._line_is_blank)
            self._out.append(text)

    def _text_until(self, mark: str) -> Reading[bool]:
        """Tell text up to a mark, which is not consumed; False at the end of the answer."""
        while True:
            rest = self._feed.rest
            at = rest.find(mark)
            if at >= 0:
                self._text(self._feed.consume(at).rstrip())
                return True
            if self._feed.ended:
                self._text(self._feed.consume(len(rest)))
                return False
            certain = rest[: len(rest) - held_back(rest, (mark,))].rstrip()
            self._text(self._feed.consume(len(certain)))
            yield

    def _attempt(
        self,
        known: Collection[str] | None,
        read: Callable[[CallReader], Reading[None]],
        rest_of_malformed: Callable[[], Reading[None]],
    ) -> Reading[bool]:
        """Read calls; what was consumed comes back as text if there are none. Returns whether there were.

        ``known`` as in ``CallReader``. ``rest_of_malformed`` consumes what else belongs to calls that are malformed.
        """
        self._reader = reader = CallReader(self._feed, self._out, self._numbers, known)
        tap = self._feed.tap()
        reader.on_finished = lambda: self._feed.collected(tap)  # a call that was told is not text
        try:
            yield from read(reader)
        except CallError as error:
            if isinstance(error, NotACall) or not reader.is_call:
                self._text(self._feed.collected(tap))
                return False
            yield from rest_of_malformed()
            text = self._feed.collected(tap)
            self._after_call, self._line_is_blank = False, False
            self._out.append(MalformedCall(text=text, reason=str(error), index=reader.started))
            return False
        finally:
            self._reader = None
            self._feed.close_tap(tap)
        self._after_call = self._line_is_blank = True
        self.calls_read += 1
        return True

    def _up_to(self, mark: str) -> Reading[None]:
        """Consume all before a mark, or before the end."""
        while True:
            rest = self._feed.rest
            at = rest.find(mark)
            if at >= 0 or self._feed.ended:
                self._feed.consume(at if at >= 0 else len(rest))
                return
            self._feed.consume(len(rest) - held_back(rest, (mark,)))
            yield
