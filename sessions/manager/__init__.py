"""The session manager: a turn's way from a request to committed tokens.

Here stand the values that callers exchange with it; they need no tokenizer and no store, so that a client may use them
too. ``manager.SessionManager`` is the one that does the work.
"""

from __future__ import annotations

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
