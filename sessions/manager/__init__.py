"""The session manager: a turn's way from a request to committed tokens.

The values that callers exchange with it need no tokenizer and no store, so that a client may use them too;
``SessionManager``, which does, is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .events import SessionEvent
from .ports import Clock, TurnEngine
from .replay import ReplayMemory
from .requests import (
    Appended,
    AppendRequest,
    CloseRequest,
    CompletionRequest,
    ExportRequest,
    ForkRequest,
    GenerateRequest,
    HintOutcome,
    HintRequest,
    HintVerdict,
    Imported,
    ImportSession,
    ListSessions,
    MessagesInput,
    Mutation,
    OpenSession,
    Resumed,
    ResumeRequest,
    RollbackRequest,
    SessionPage,
    SessionView,
    Suspended,
    SuspendRequest,
    TextInput,
    TokenIdsInput,
    TokensByTier,
    ToolResultInput,
    TurnInput,
    WatchRequest,
)
from .service import Sessions
from .turn_events import StopCause, TextDelta, TurnEvent, TurnFinished

if TYPE_CHECKING:
    from .manager import SessionManager

__all__ = [
    "AppendRequest",
    "Appended",
    "Clock",
    "CloseRequest",
    "CompletionRequest",
    "ExportRequest",
    "ForkRequest",
    "GenerateRequest",
    "HintOutcome",
    "HintRequest",
    "HintVerdict",
    "ImportSession",
    "Imported",
    "ListSessions",
    "MessagesInput",
    "Mutation",
    "OpenSession",
    "ReplayMemory",
    "ResumeRequest",
    "Resumed",
    "RollbackRequest",
    "SessionEvent",
    "SessionManager",
    "SessionPage",
    "SessionView",
    "Sessions",
    "StopCause",
    "SuspendRequest",
    "Suspended",
    "TextDelta",
    "TextInput",
    "TokenIdsInput",
    "TokensByTier",
    "ToolResultInput",
    "TurnEngine",
    "TurnEvent",
    "TurnFinished",
    "TurnInput",
    "WatchRequest",
]


def __getattr__(name: str) -> Any:
    if name == "SessionManager":
        from .manager import SessionManager

        return SessionManager
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
