"""Turns that an observatory is told of, without an engine."""

from __future__ import annotations

from sessile.server.engine.messages import (
    AdmittedTurn,
    FinishReason,
    MissedTokens,
    SubmitTurn,
    TokensBySource,
    TurnOutput,
    TurnUsage,
)
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.turn_watch import TurnWatch
from sessile.server.observe.observatory import Observatory

SOURCES = TokensBySource(device=30, computed=70)
MISSED = MissedTokens(evicted=40)


def run_turn(observatory: Observatory, turn_id: str, tenant: str = "", conversation: str = "s1") -> None:
    turn = SubmitTurn(turn_id=turn_id, token_ids=list(range(100)), sampling=SamplingParams(), tenant=tenant)
    observatory.asked(turn, conversation, "", dict)
    observatory.turn_started(turn)
    observatory.turn_admitted(
        AdmittedTurn(turn_id=turn_id, tokens_by_source=SOURCES, reusable_tokens=70, missed=MISSED)
    )
    watch = TurnWatch(lambda: 0.0)
    usage = TurnUsage(
        prompt_tokens=100, completion_tokens=1, tokens_by_source=SOURCES, reusable_tokens=70, missed=MISSED
    )
    watch.absorb(TurnOutput(turn_id=turn_id, token_ids=[1], finish_reason=FinishReason.STOP, usage=usage))
    observatory.turn_ended(turn, watch)
