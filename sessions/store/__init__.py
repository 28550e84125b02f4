"""The session store: SQLite, one writer, nothing ever rewritten but the sessions' heads."""

from __future__ import annotations

from .change import Change, DuplicateRequest, KeepingChange
from .conversations import StoredConversation, StoredResponse
from .rows import StoredAnswer
from .store import SessionStore
from .tool_latencies import StoredLatency

__all__ = [
    "Change",
    "DuplicateRequest",
    "KeepingChange",
    "SessionStore",
    "StoredAnswer",
    "StoredConversation",
    "StoredLatency",
    "StoredResponse",
]
