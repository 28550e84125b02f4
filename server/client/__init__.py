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
from ...sessions.manager.requests import Appended, SessionView, StopCause, TextDelta, TurnFinished
from ...sessions.messages import Message, Role, Tool, ToolCall
from ..engine.messages import FinishReason, Priority, TokenLogprobs, TokensBySource, TurnUsage
from ..engine.sampling_params import SamplingParams
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
    "Message",
    "ModelChanged",
    "Priority",
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
    "Turn",
    "TurnFinished",
    "TurnInterrupted",
    "TurnUsage",
]
