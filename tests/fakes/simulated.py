"""Turns and engines for tests that drive the scheduler on the simulated clock."""

from __future__ import annotations

import itertools

from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.messages import Priority, SubmitTurn
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.sequence import Sequence
from sessile.server.engine.simulator.engine import SimulatedEngine
from sessile.server.engine.simulator.step_cost import StepCost

# 1,000 tokens of prefill a second, 10 ms a step, 1 ms a decoded token
COST = StepCost(step=0.010, decode_token=0.001, decode_context=1e-7, prefill_token=0.001, prefill_pair=1e-8)
_fresh = itertools.count()


def fresh_tokens(length: int) -> list[int]:
    """Tokens that no other prompt begins with."""
    return [next(_fresh) % (1 << 31)] + [7] * (length - 1)


def a_turn(
    turn_id: str,
    tokens: int | list[int],
    max_tokens: int = 4,
    tenant: str = "",
    priority: Priority = Priority.INTERACTIVE,
    deadline_s: float | None = None,
) -> SubmitTurn:
    return SubmitTurn(
        turn_id=turn_id,
        token_ids=fresh_tokens(tokens) if isinstance(tokens, int) else tokens,
        sampling=SamplingParams(max_tokens=max_tokens, seed=0, ignore_eos=True),
        tenant=tenant,
        priority=priority,
        deadline_s=deadline_s,
    )


def an_engine(num_blocks: int = 4096, cost: StepCost = COST, **config) -> SimulatedEngine:
    return SimulatedEngine(EngineConfig(**config), cost, num_blocks)


def a_sequence(
    order: int,
    tokens: int = 32,
    tenant: str = "",
    priority: Priority = Priority.INTERACTIVE,
    arrival: float = 0.0,
    deadline_s: float | None = None,
) -> Sequence:
    turn = a_turn(str(order), tokens, tenant=tenant, priority=priority, deadline_s=deadline_s)
    return Sequence(turn, 4, arrival, order)
