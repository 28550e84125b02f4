"""What a tenant may use, against a plain model; no tenant's use touches another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from set_clock import SetClock

from sessile.server.engine.limits_config import LimitsConfig
from sessile.server.engine.messages import SubmitTurn, TokensBySource, TurnUsage
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.tenant_limits import TenantLimits
from sessile.sessions.errors import CapacityError


def turn(tenant: str = "acme") -> SubmitTurn:
    return SubmitTurn(turn_id="t", token_ids=[1], sampling=SamplingParams(), tenant=tenant)


def used(computed: int, completion: int = 0, cached: int = 0) -> TurnUsage:
    sources = TokensBySource(device=cached, computed=computed)
    return TurnUsage(prompt_tokens=computed + cached, completion_tokens=completion, tokens_by_source=sources)


def test_turns_at_once() -> None:
    limits = TenantLimits(LimitsConfig(concurrent_turns=2), SetClock())
    limits.enter(turn())
    limits.enter(turn())
    with pytest.raises(CapacityError, match="2 turns of this tenant are running") as refused:
        limits.enter(turn())
    assert refused.value.retry_after_s and refused.value.remedy
    limits.enter(turn("other"))
    limits.leave(turn(), None)
    limits.enter(turn())


def test_turns_a_minute() -> None:
    clock = SetClock()
    limits = TenantLimits(LimitsConfig(turns_per_minute=6), clock)
    for _ in range(6):
        limits.enter(turn())
        limits.leave(turn(), None)
    with pytest.raises(CapacityError) as refused:
        limits.enter(turn())
    assert refused.value.retry_after_s == pytest.approx(10.0)
    limits.enter(turn("other"))
    clock.now += 10.0
    limits.enter(turn())
    with pytest.raises(CapacityError):
        limits.enter(turn())


def test_tokens_a_minute_count_what_was_computed_and_not_what_was_cached() -> None:
    clock = SetClock()
    limits = TenantLimits(LimitsConfig(tokens_per_minute=600), clock)
    limits.enter(turn())
    limits.leave(turn(), used(computed=10, cached=100_000))
    limits.enter(turn())
    limits.leave(turn(), used(computed=900, completion=290))
    with pytest.raises(CapacityError, match="600 tokens a minute") as refused:
        limits.enter(turn())
    assert refused.value.retry_after_s == pytest.approx(60.1)
    clock.now += refused.value.retry_after_s
    limits.enter(turn())


def test_a_tenant_that_used_nothing_for_a_minute_is_forgotten() -> None:
    clock = SetClock()
    limits = TenantLimits(LimitsConfig(turns_per_minute=60, tokens_per_minute=60), clock)
    for number in range(5000):
        name = f"tenant {number}"
        limits.enter(turn(name))
        limits.leave(turn(name), used(1))
        clock.now += 1.0
    assert len(limits._tenants) < 200


@given(
    st.integers(1, 4),
    st.integers(1, 30),
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.floats(0, 30), st.booleans()), max_size=60),
)
def test_in_any_minute_no_more_than_two_minutes_worth_is_let_in(
    at_once: int, per_minute: int, steps: list[tuple[str, float, bool]]
) -> None:
    clock = SetClock()
    limits = TenantLimits(LimitsConfig(concurrent_turns=at_once, turns_per_minute=per_minute), clock)
    running = {"a": 0, "b": 0}
    waits: list[float | None] = []
    entered: dict[str, list[float]] = {"a": [], "b": []}
    for tenant, pause, ends in steps:
        clock.now += pause
        if ends and running[tenant]:
            limits.leave(turn(tenant), used(5))
            running[tenant] -= 1
            continue
        try:
            limits.enter(turn(tenant))
        except CapacityError as refused:
            waits.append(refused.retry_after_s)
            continue
        running[tenant] += 1
        entered[tenant].append(clock.now)
        assert running[tenant] <= at_once
        recent = [at for at in entered[tenant] if at > clock.now - 60.0]
        assert len(recent) <= 2 * per_minute
    assert all(wait is not None and 0 < wait <= 60.0 for wait in waits)
