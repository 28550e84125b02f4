"""The session manager: a turn's way from a request to committed tokens.

The values that callers exchange with it need no tokenizer and no store, so that a client may use them too;
``SessionManager``, which does, is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from .manager import SessionManager

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


def __getattr__(name: str) -> Any:
    if name == "SessionManager":
        from .manager import SessionManager

        return SessionManager
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
