"""Tool calls as models write them, and what a parser made of a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sessile.server.text.tool_calls import (
    AnswerPiece,
    MalformedCall,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStarted,
)
from sessile.sessions.messages import ToolCall


def hermes(calls: Sequence[ToolCall]) -> str:
    """As Qwen's and Hermes' templates write calls."""
    return "\n".join(f"<tool_call>\n{_object(call, 'arguments')}\n</tool_call>" for call in calls)


def llama3(calls: Sequence[ToolCall]) -> str:
    return "; ".join(_object(call, "parameters") for call in calls)


def llama3_tagged(calls: Sequence[ToolCall]) -> str:
    return "<|python_tag|>" + llama3(calls)


def mistral_list(calls: Sequence[ToolCall]) -> str:
    return "[TOOL_CALLS] [" + ", ".join(_object(call, "arguments") for call in calls) + "]"


def mistral_named(calls: Sequence[ToolCall]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{call.arguments}" for call in calls)


def mistral_with_ids(calls: Sequence[ToolCall]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}[CALL_ID]abcdefghi[ARGS]{call.arguments}" for call in calls)


def json_list(calls: Sequence[ToolCall]) -> str:
    return "[" + ",\n".join(_object(call, "arguments") for call in calls) + "]"


def json_lines(calls: Sequence[ToolCall]) -> str:
    return "\n".join(_object(call, "arguments") for call in calls)


def json_fenced(calls: Sequence[ToolCall]) -> str:
    return "```json\n" + json_list(calls) + "\n```"


Render = Callable[[Sequence[ToolCall]], str]


def _object(call: ToolCall, word: str) -> str:
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "{word}": {call.arguments}}}'


@dataclass
class Parsed:
    """The pieces of one answer, put together. Calls that were void are not among ``calls``."""

    text: str = ""
    reasoning: str = ""
    malformed: list[MalformedCall] = field(default_factory=list)
    by_index: dict[int, ToolCall] = field(default_factory=dict)

    @property
    def calls(self) -> list[ToolCall]:
        return list(self.by_index.values())

    def take(self, pieces: Iterable[AnswerPiece]) -> None:
        for piece in pieces:
            match piece:
                case str():
                    self.text += piece
                case ReasoningDelta(text=text):
                    self.reasoning += text
                case ToolCallStarted(index=index, id=call_id, name=name):
                    assert index not in self.by_index
                    self.by_index[index] = ToolCall(id=call_id, name=name, arguments="")
                case ToolCallArguments(index=index, fragment=fragment):
                    assert fragment
                    call = self.by_index[index]
                    self.by_index[index] = ToolCall(id=call.id, name=call.name, arguments=call.arguments + fragment)
                case MalformedCall():
                    self.text += piece.text
                    self.malformed.append(piece)
                    if piece.index is not None:
                        del self.by_index[piece.index]
