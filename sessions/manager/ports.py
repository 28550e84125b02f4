"""What the session manager needs of the engine's client: the narrow side of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from ...server.engine.cache_messages import (
    CacheEvents,
    ExportOutcome,
    ExportPath,
    ImportOutcome,
    ImportPath,
    PersistOutcome,
    PersistPath,
    ReleasePath,
    ResumeEstimate,
    ResumePath,
    RetainOutcome,
    RetainPath,
    SupersedePath,
    SuspendOutcome,
    SuspendPath,
)
from ...server.engine.messages import EngineReady, SubmitTurn, TurnOutput
from .turn_events import Miss

Clock = Callable[[], float]
"""Seconds since the epoch, as the machine's clock has them: it may be set, forwards and backwards."""

SteadyClock = Callable[[], float]
"""Seconds since some moment; never set. What is waited for, and how long something took, is counted on this one."""


class TurnRunner(Protocol):
    """An engine that runs turns."""

    @property
    def info(self) -> EngineReady:
        """The loaded model. Raises EngineError while none is ready."""
        ...

    def generate(self, turn: SubmitTurn) -> AsyncGenerator[TurnOutput, None]:
        """Run a turn; the last output has a finish reason and the usage. Closing the iterator aborts the turn."""
        ...

    async def abort(self, turn_id: str) -> None:
        """End a running turn within one step; its iterator then ends with ``FinishReason.ABORTED`` and the usage."""
        ...


class EngineCache(Protocol):
    """The engine's cache, which can be told what is known of sessions. All of it raises EngineError without an engine.

    See ``server/engine/client.py`` for each method.
    """

    @property
    def info(self) -> EngineReady:
        """The loaded model; another value after a restart of the engine."""
        ...

    async def retain(self, path: RetainPath) -> RetainOutcome: ...

    async def release(self, path: ReleasePath) -> None: ...

    async def supersede(self, path: SupersedePath) -> None: ...

    async def persist(self, path: PersistPath) -> PersistOutcome: ...

    async def suspend(self, path: SuspendPath) -> SuspendOutcome: ...

    async def resume(self, path: ResumePath) -> ResumeEstimate: ...

    async def export_path(self, path: ExportPath) -> ExportOutcome: ...

    async def import_path(self, path: ImportPath) -> ImportOutcome: ...

    def cache_events(self) -> AsyncGenerator[CacheEvents, None]:
        """What happens in the cache from now on, over restarts of the engine."""
        ...


class TurnEngine(TurnRunner, EngineCache, Protocol):
    """All that the manager may ask of the engine's client."""


class TurnObserver(Protocol):
    """Who hears of turns. It never raises and never waits."""

    def asked(self, turn: SubmitTurn, conversation: str, lineage: str, content: Callable[[], dict[str, Any]]) -> None:
        """A turn is about to be sent to the engine.

        ``conversation``: the session's id, or a name for the conversation of a turn without one; may be empty.
        ``lineage``: whose requests this one goes on from, as the client says; empty: to be found by what they say.
        ``content``: makes the request's body, in OpenAI's shape or that of the endpoint that was asked; may be called
        once, from any thread.
        """
        ...

    def miss_of(self, turn_id: str) -> Miss | None:
        """Why a turn that has just ended computed more than it had to; None if it did not, or if that is not known."""
        ...

    def forked(self, session_id: str, parent: str) -> None:
        """``session_id`` goes on from a point of ``parent``."""
        ...


class Unobserved:
    """Nobody listens."""

    def asked(self, turn: SubmitTurn, conversation: str, lineage: str, content: Callable[[], dict[str, Any]]) -> None:
        """See ``TurnObserver``."""

    def miss_of(self, turn_id: str) -> Miss | None:
        """See ``TurnObserver``."""
        return None

    def forked(self, session_id: str, parent: str) -> None:
        """See ``TurnObserver``."""
