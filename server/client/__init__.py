"""The client: sessions from Python, with asyncio (``AsyncSessionClient``) or without (``SessionClient``).

Part of the core install: no torch, no tokenizer.
"""

from __future__ import annotations

from ...sessions.errors import (
    CapacityError,
    ContextOverflow,
    DeadlineExceeded,
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
    StoreUnavailable,
)
from ...sessions.keeping import (
    ExpectedOutput,
    Final,
    Hint,
    Persistence,
    PersistencePolicy,
    Retain,
    ToolWait,
    WillBranch,
)
from ...sessions.manager.events import (
    EventsLost,
    KvMoved,
    Missed,
    Movement,
    SessionEvent,
    TurnFailed,
    TurnStarted,
    WatchStarted,
)
from ...sessions.manager.requests import (
    Appended,
    HintOutcome,
    HintVerdict,
    Imported,
    Resumed,
    SessionView,
    Suspended,
    TokensByTier,
    ToolChoice,
    ToolChoiceMode,
)
from ...sessions.manager.turn_events import Miss, StopCause, TextDelta, TurnDelta, TurnFinished, TurnSummary
from ...sessions.messages import Message, Role, Tool, ToolCall
from ..engine.grammar import Grammar, GrammarKind
from ..engine.messages import FinishReason, Priority, TokenLogprobs, TokensBySource, TurnUsage
from ..engine.sampling_params import SamplingParams
from ..text.tool_calls import MalformedCall, ReasoningDelta, ToolCallArguments, ToolCallStarted
from .asynchronous import AsyncSessionClient
from .errors import CallFailed, ConnectionLost, TurnInterrupted
from .retry import NO_RETRIES, RetryPolicy
from .session import AsyncSession
from .synchronous import Session, SessionClient, Turn, Watch
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
    "EventsLost",
    "ExpectedOutput",
    "Final",
    "FinishReason",
    "Grammar",
    "GrammarKind",
    "Hint",
    "HintOutcome",
    "HintVerdict",
    "Imported",
    "KvMoved",
    "MalformedCall",
    "Message",
    "Miss",
    "Missed",
    "ModelChanged",
    "Movement",
    "Persistence",
    "PersistencePolicy",
    "Priority",
    "ReasoningDelta",
    "RequestError",
    "Resumed",
    "Retain",
    "RetryPolicy",
    "Role",
    "SamplingParams",
    "SessileError",
    "Session",
    "SessionBusy",
    "SessionClient",
    "SessionError",
    "SessionEvent",
    "SessionNotFound",
    "SessionView",
    "StaleVersion",
    "StopCause",
    "StoreError",
    "StoreUnavailable",
    "Suspended",
    "TextDelta",
    "TokenLogprobs",
    "TokensBySource",
    "TokensByTier",
    "Tool",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallStarted",
    "ToolChoice",
    "ToolChoiceMode",
    "ToolWait",
    "Turn",
    "TurnDelta",
    "TurnFailed",
    "TurnFinished",
    "TurnInterrupted",
    "TurnStarted",
    "TurnSummary",
    "TurnUsage",
    "Watch",
    "WatchStarted",
    "WillBranch",
]
