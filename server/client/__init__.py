"""The client: sessions from Python, with asyncio (``AsyncSessionClient``) or without (``SessionClient``).

Part of the core install: no torch, no tokenizer.
"""

from __future__ import annotations

from ...sessions.errors import (
    CapacityError,
    ContextOverflow,
    Draining,
    EngineError,
    ModelChanged,
    RequestError,
    SessileError,
    SessionBusy,
    SessionError,
    SessionNotFound,
    StaleVersion,
    StoreError,
)
from ...sessions.manager.requests import (
    Appended,
    SessionView,
    StopCause,
    TextDelta,
    ToolChoice,
    ToolChoiceMode,
    TurnDelta,
    TurnFinished,
)
from ...sessions.messages import Message, Role, Tool, ToolCall
from ..engine.messages import FinishReason, Priority, TokenLogprobs, TokensBySource, TurnUsage
from ..engine.sampling_params import SamplingParams
from ..text.tool_calls import MalformedCall, ReasoningDelta, ToolCallArguments, ToolCallStarted
from .asynchronous import AsyncSession, AsyncSessionClient
from .errors import CallFailed, ConnectionLost, DeadlineExceeded, TurnInterrupted
from .retry import NO_RETRIES, RetryPolicy
from .synchronous import Session, SessionClient, Turn
from .turn import AsyncTurn

__all__ = [
    "NO_RETRIES",
    "Appended",
    "AsyncSession",
    "AsyncSessionClient",
    "AsyncTurn",
    "CallFailed",
    "CapacityError",
    "ConnectionLost",
    "ContextOverflow",
    "DeadlineExceeded",
    "Draining",
    "EngineError",
    "FinishReason",
    "MalformedCall",
    "Message",
    "ModelChanged",
    "Priority",
    "ReasoningDelta",
    "RequestError",
    "RetryPolicy",
    "Role",
    "SamplingParams",
    "SessileError",
    "Session",
    "SessionBusy",
    "SessionClient",
    "SessionError",
    "SessionNotFound",
    "SessionView",
    "StaleVersion",
    "StopCause",
    "StoreError",
    "TextDelta",
    "TokenLogprobs",
    "TokensBySource",
    "Tool",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallStarted",
    "ToolChoice",
    "ToolChoiceMode",
    "Turn",
    "TurnDelta",
    "TurnFinished",
    "TurnInterrupted",
    "TurnUsage",
]
