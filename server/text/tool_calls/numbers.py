"""What every parser of tool calls can do, and how calls get their numbers and ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .deltas import AnswerPiece


class ToolCallParser(Protocol):
    """Finds calls in a stream of text. What it says does not depend on how the text is cut into pieces."""

    @property
    def calls_read(self) -> int:
        """How many calls, or lists of calls, were read to their end."""
        ...

    def push(self, text: str) -> list[AnswerPiece]:
        """What became certain with this text."""
        ...

    def finish(self) -> list[AnswerPiece]:
        """What was held back; the text ends here."""
        ...


class CallNumbers:
    """Numbers the calls of one answer from 0; ``new_id`` makes the id of the call with a number."""

    def __init__(self, new_id: Callable[[int], str]) -> None:
        self._new_id = new_id
        self._next = 0

    def take(self) -> tuple[int, str]:
        """The number and the id of the next call."""
        index = self._next
        self._next += 1
        return index, self._new_id(index)
