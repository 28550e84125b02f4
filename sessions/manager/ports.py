"""What the session manager needs of the engine, the tokenizer and the chat template: the narrow side of each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from ...server.engine.messages import EngineReady, SubmitTurn, TurnOutput

TemplateMessage = dict[str, Any]
"""A message as chat templates read it: ``role``, ``content``, ``tool_calls``, …"""

Clock = Callable[[], float]
"""Seconds since the epoch."""


class TurnEngine(Protocol):
    """What the manager may ask of the engine's client."""

    @property
    def info(self) -> EngineReady:
        """The loaded model. Raises EngineError while none is ready."""
        ...

    def generate(self, turn: SubmitTurn) -> AsyncIterator[TurnOutput]:
        """Run a turn; the last output has a finish reason and the usage. Closing the iterator aborts the turn."""
        ...

    async def abort(self, turn_id: str) -> None:
        """End a running turn within one step; its iterator then ends with ``FinishReason.ABORTED``."""
        ...


class TokenCodec(Protocol):
    """A tokenizer, both ways."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> Sequence[int]:
        """All tokens that end a turn."""
        ...

    def encode(self, text: str, *, allow_special: bool) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str: ...
