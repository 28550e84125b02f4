"""What the session manager needs of the engine's client: the narrow side of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from ...server.engine.messages import EngineReady, SubmitTurn, TurnOutput

Clock = Callable[[], float]
"""Seconds since the epoch."""


class TurnEngine(Protocol):
    """What the manager may ask of the engine's client."""

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
