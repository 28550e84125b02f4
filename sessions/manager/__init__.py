"""The session manager: a turn's way from a request to committed tokens."""

from __future__ import annotations

from .manager import SessionManager
from .ports import Clock, TurnEngine
from .replay import ReplayMemory
from .requests import (
    Appended,
    AppendRequest,
    CloseRequest,
    CompletionRequest,
    ForkRequest,
    GenerateRequest,
    ListSessions,
    MessagesInput,
    Mutation,
    OpenSession,
    RollbackRequest,
    SessionPage,
    SessionView,
    StopCause,
    TextDelta,
    TextInput,
    TokenIdsInput,
    ToolResultInput,
    TurnEvent,
    TurnFinished,
    TurnInput,
)
from .service import Sessions

__all__ = [
    "AppendRequest",
    "Appended",
    "Clock",
    "CloseRequest",
    "CompletionRequest",
    "ForkRequest",
    "GenerateRequest",
    "ListSessions",
    "MessagesInput",
    "Mutation",
    "OpenSession",
    "ReplayMemory",
    "RollbackRequest",
    "SessionManager",
    "SessionPage",
    "SessionView",
    "Sessions",
    "StopCause",
    "TextDelta",
    "TextInput",
    "TokenIdsInput",
    "ToolResultInput",
    "TurnEngine",
    "TurnEvent",
    "TurnFinished",
    "TurnInput",
]
