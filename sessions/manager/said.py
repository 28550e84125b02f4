"""What a turn said, put together from the pieces of its answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from ...server.text.tool_calls import (
    AnswerPiece,
    MalformedCall,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStarted,
)
from ..messages import Message, Role, ToolCall


class Said:
    """Collects pieces. The text of a call that turns out malformed is text of the answer, and the call is void."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[str, str, list[str]]] = {}
        self._pieces: list[AnswerPiece] = []
        self.more_than_text = False

    def take(self, pieces: Iterable[AnswerPiece]) -> None:
        for piece in pieces:
            self._pieces.append(piece)
            if not isinstance(piece, str):
                self.more_than_text = True
            match piece:
                case str():
                    self._text.append(piece)
                case ReasoningDelta(text=text):
                    self._reasoning.append(text)
                case ToolCallStarted(index=index, id=call_id, name=name):
                    self._calls[index] = (call_id, name, [])
                case ToolCallArguments(index=index, fragment=fragment):
                    self._calls[index][2].append(fragment)
                case MalformedCall(text=text, index=index):
                    self._text.append(text)
                    if index is not None:
                        del self._calls[index]

    @property
    def pieces(self) -> list[AnswerPiece]:
        """All pieces, with those of one kind that follow each other as one."""
        whole: list[AnswerPiece] = []
        for (kind, _), run in itertools.groupby(self._pieces, key=_kind):
            whole += _joined(kind, list(run))
        return whole

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str | None:
        """None where there was none."""
        return "".join(self._reasoning) or None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that are complete."""
        return tuple(
            ToolCall(id=call_id, name=name, arguments="".join(fragments))
            for call_id, name, fragments in self._calls.values()
        )

    @property
    def message(self) -> Message:
        """All of it as the assistant's message."""
        return Message(role=Role.ASSISTANT, content=self.text, tool_calls=self.tool_calls, reasoning=self.reasoning)


def _kind(piece: AnswerPiece) -> tuple[type, int | None]:
    """What pieces must have in common to be joined."""
    return type(piece), piece.index if isinstance(piece, ToolCallArguments) else None


def _joined(kind: type, run: Sequence[Any]) -> Sequence[AnswerPiece]:
    if kind is str:
        return ["".join(run)]
    if kind is ReasoningDelta:
        return [ReasoningDelta(text="".join(piece.text for piece in run))]
    if kind is ToolCallArguments:
        return [ToolCallArguments(index=run[0].index, fragment="".join(piece.fragment for piece in run))]
    return run
