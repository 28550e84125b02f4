"""The pieces that an answer is made of, as they become certain."""

from __future__ import annotations

import msgspec


class ReasoningDelta(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """More of what the model thinks before it answers."""

    text: str


class ToolCallStarted(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call_started"):
    """A call begins: ``index`` counts the calls of an answer from 0, ``id`` is what its result will name."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call_arguments"):
    """More of a call's arguments, exactly as the model writes them: all fragments together are a JSON object."""

    index: int
    fragment: str


class MalformedCall(msgspec.Struct, frozen=True, kw_only=True, tag="malformed_call"):
    """Something that began like a call and is none: ``text`` is all of it and belongs to the answer's text.

    ``index``: the call that had been started by then, which is void; None if none had.
    """

    text: str
    reason: str
    index: int | None = None


AnswerPiece = str | ReasoningDelta | ToolCallStarted | ToolCallArguments | MalformedCall
"""A plain string is text of the answer."""
