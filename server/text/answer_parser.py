"""An answer's text as pieces: reasoning, text, tool calls."""

from __future__ import annotations

from collections.abc import Sequence

from .reasoning import ReasoningSplitter
from .tool_calls.deltas import AnswerPiece, ReasoningDelta
from .tool_calls.numbers import ToolCallParser


class AnswerParser:
    """Parts reasoning from the rest, and calls from the rest of that. None leaves a part in the text."""

    def __init__(self, reasoning: ReasoningSplitter | None, calls: ToolCallParser | None) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def in_reasoning(self) -> bool:
        """Whether the text so far ends in reasoning."""
        return self._reasoning is not None and self._reasoning.inside

    @property
    def calls_read(self) -> int:
        """How many calls, or lists of calls, were read to their end."""
        return 0 if self._calls is None else self._calls.calls_read

    def push(self, text: str) -> list[AnswerPiece]:
        """What became certain with this text."""
        if self._reasoning is None:
            return self._without_reasoning(text)
        return self._parted(self._reasoning.push(text))

    def finish(self) -> list[AnswerPiece]:
        """What was held back; the answer ends here."""
        out = self._parted(self._reasoning.finish()) if self._reasoning is not None else []
        return out + (self._calls.finish() if self._calls is not None else [])

    def _parted(self, pieces: Sequence[str | ReasoningDelta]) -> list[AnswerPiece]:
        out: list[AnswerPiece] = []
        for piece in pieces:
            out += self._without_reasoning(piece) if isinstance(piece, str) else [piece]
        return out

    def _without_reasoning(self, text: str) -> list[AnswerPiece]:
        if self._calls is not None:
            return self._calls.push(text)
        return [text] if text else []
