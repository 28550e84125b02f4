"""The session manager as the servicers and the HTTP routes see it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from .events import SessionEvent
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
    Imported,
    ImportSession,
    ListSessions,
    OpenSession,
    Resumed,
    ResumeRequest,
    RollbackRequest,
    SessionPage,
    SessionView,
    Suspended,
    SuspendRequest,
    WatchRequest,
)
from .turn_events import CompletionEvent, TurnEvent, TurnSummary


class Sessions(Protocol):
    """Sessions and their turns. Every method raises the errors of ``sessions/errors.py``, and no others.

    A change with a ``request_id`` that was answered before gets the same answer again; the same id with another body
    is a RequestError on ``request_id``.
    """

    async def open(self, request: OpenSession) -> SessionView: ...

    async def append(self, request: AppendRequest) -> Appended: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TurnEvent, None]:
        """Run a turn: deltas, and at last one TurnFinished, after which the turn is on disk.

        Errors are raised at the first step of the iterator, or in the middle of the turn. Closing the iterator, or
        cancelling the task that awaits it, ends the turn and leaves the session as it was.
        """
        ...

    async def fork(self, request: ForkRequest) -> SessionView: ...

    async def rollback(self, request: RollbackRequest) -> SessionView: ...

    async def close(self, request: CloseRequest) -> SessionView: ...

    async def hint(self, request: HintRequest) -> HintOutcome:
        """Take a hint, also while a turn runs. Changes neither the log nor the version."""
        ...

    async def suspend(self, request: SuspendRequest) -> Suspended: ...

    async def resume(self, request: ResumeRequest) -> Resumed: ...

    def watch(self, request: WatchRequest) -> AsyncGenerator[SessionEvent, None]:
        """Events from now on; the first says that it has begun. A slow reader loses events and is told how many.

        Errors are raised at the first step of the iterator. It ends when the server shuts down.
        """
        ...

    def export(self, request: ExportRequest) -> AsyncGenerator[bytes, None]:
        """A session as a file, in pieces; errors are raised at the first step of the iterator, or in its middle."""
        ...

    async def import_(self, request: ImportSession, pieces: AsyncIterator[bytes]) -> Imported:
        """A session from the file that ``pieces`` are, all of it or nothing. What ``pieces`` raises is raised."""
        ...

    async def get(self, session_id: str, tenant: str) -> SessionView: ...

    async def turns(self, session_id: str, tenant: str) -> tuple[TurnSummary, ...]: ...

    async def list(self, request: ListSessions) -> SessionPage: ...

    def complete(self, request: CompletionRequest) -> AsyncGenerator[CompletionEvent, None]:
        """Run a turn of a client that names no session; otherwise as ``generate``. The session comes first."""
        ...
