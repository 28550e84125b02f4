"""Text that comes in pieces, read by generators that wait where it ends."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TypeVar

_Result = TypeVar("_Result")
Reading = Generator[None, None, _Result]
"""A reader of a feed: it yields when it needs more text, and returns what it read."""


class Tap:
    """Collects what is consumed of a feed."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._pieces: list[str] = []

    def collect(self, text: str, position: int) -> None:
        """Take over ``text`` from where the tap stands to ``position``."""
        if position > self._start:
            self._pieces.append(text[self._start : position])
            self._start = position

    def moved(self) -> None:
        """The text consumed so far is gone from the feed."""
        self._start = 0

    def take(self) -> str:
        """What was collected and not yet taken."""
        taken, self._pieces = "".join(self._pieces), []
        return taken


class Feed:
    """The text that was pushed and not consumed. ``ended``: no more will come."""

    def __init__(self) -> None:
        self._text = ""
        self._position = 0
        self._taps: list[Tap] = []
        self.ended = False

    def push(self, text: str) -> None:
        for tap in self._taps:
            tap.collect(self._text, self._position)
            tap.moved()
        self._text = self._text[self._position :] + text
        self._position = 0

    @property
    def rest(self) -> str:
        """What is here and not consumed."""
        return self._text[self._position :]

    def consume(self, length: int) -> str:
        """Take the next characters, which are here."""
        start, self._position = self._position, self._position + length
        return self._text[start : self._position]

    def tap(self) -> Tap:
        """Collect what is consumed from here on."""
        tap = Tap(self._position)
        self._taps.append(tap)
        return tap

    def collected(self, tap: Tap) -> str:
        """What was consumed since the tap was opened, or asked for last."""
        tap.collect(self._text, self._position)
        return tap.take()

    def close_tap(self, tap: Tap) -> str:
        """What was consumed since it was asked for last; nothing more is collected."""
        collected = self.collected(tap)
        self._taps.remove(tap)
        return collected

    def peek(self) -> Reading[str]:
        """The next character, not consumed; empty at the end."""
        while self._position >= len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._position]

    def skip(self, characters: str) -> Reading[None]:
        """Consume all of these characters that come next."""
        while True:
            character = yield from self.peek()
            if not character or character not in characters:
                return
            self._position += 1

    def accept(self, literal: str) -> Reading[bool]:
        """Consume ``literal`` if it comes next."""
        while not (rest := self.rest).startswith(literal):
            if self.ended or not literal.startswith(rest):
                return False
            yield
        self._position += len(literal)
        return True


def held_back(text: str, literals: Iterable[str]) -> int:
    """How many characters at the end of ``text`` may be the beginning of one of ``literals``."""
    return max((_overlap(text, literal) for literal in literals), default=0)


def _overlap(text: str, literal: str) -> int:
    for length in range(min(len(literal) - 1, len(text)), 0, -1):
        if text.endswith(literal[:length]):
            return length
    return 0
