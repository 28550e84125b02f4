"""Tool calls in what a model writes: one parser a format, fed with text as it comes."""

from __future__ import annotations

from .deltas import AnswerPiece, MalformedCall, ReasoningDelta, ToolCallArguments, ToolCallStarted
from .numbers import CallNumbers, ToolCallParser

__all__ = [
    "AnswerPiece",
    "CallNumbers",
    "MalformedCall",
    "ReasoningDelta",
    "ToolCallArguments",
    "ToolCallParser",
    "ToolCallStarted",
]
