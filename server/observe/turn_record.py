"""What is kept of a turn that has ended."""

from __future__ import annotations

import msgspec

from ...sessions.manager.turn_events import Miss
from ..engine.messages import SubmitTurn, TurnUsage


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One turn, as the front saw it. ``started_at``: seconds since the epoch; the other times are seconds.

    ``outcome``: why it ended, as in ``FinishReason``, or ``error``. ``usage`` None: it ended without one.
    ``conversation``: its session, or a name for what it continues; may be empty.
    """

    turn: SubmitTurn
    conversation: str
    started_at: float
    ttft_s: float | None
    duration_s: float
    outcome: str
    usage: TurnUsage | None = None
    output_token_ids: tuple[int, ...] = ()
    miss: Miss | None = None

    @property
    def tenant(self) -> str:
        return self.turn.tenant
