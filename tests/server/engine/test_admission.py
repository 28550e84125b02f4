"""The front's side of the engine's queue: who is let in, and when the others should come back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.server.engine.admission import (
    LEAST_RETRY_S,
    MOST_RETRY_S,
    TurnAdmission,
    expected_wait_s,
    retry_after_s,
)
from sessile.server.engine.messages import EngineStats, Priority, QueueStats, SubmitTurn
from sessile.server.engine.sampling_params import SamplingParams
from sessile.sessions.errors import CapacityError


def turn(tenant: str = "a", priority: Priority = Priority.INTERACTIVE) -> SubmitTurn:
    return SubmitTurn(turn_id="t", token_ids=[1], sampling=SamplingParams(), tenant=tenant, priority=priority)


def test_batch_work_does_not_fill_the_interactive_queue() -> None:
    admission = TurnAdmission(max_open=4, max_sequences=2)
    for _ in range(4):
        admission.enter(turn(priority=Priority.BATCH), EngineStats())
    with pytest.raises(CapacityError, match="4 batch turns"):
        admission.enter(turn(priority=Priority.BATCH), EngineStats())
    admission.enter(turn(), EngineStats())


def test_a_full_queue_takes_a_turn_of_a_tenant_that_has_none_in_it() -> None:
    admission = TurnAdmission(max_open=16, max_sequences=2)
    for _ in range(16):
        admission.enter(turn("many"), EngineStats())
    with pytest.raises(CapacityError):
        admission.enter(turn("many"), EngineStats())
    admission.enter(turn("few"), EngineStats())
    with pytest.raises(CapacityError):
        admission.enter(turn("few"), EngineStats())
    admission.enter(turn("third"), EngineStats())
    with pytest.raises(CapacityError):  # the eighth more is taken
        admission.enter(turn("fourth"), EngineStats())


def test_a_turn_that_ended_leaves_its_place() -> None:
    admission = TurnAdmission(max_open=1, max_sequences=1)
    admission.enter(turn(), EngineStats())
    admission.leave(turn())
    admission.enter(turn(), EngineStats())


def test_the_retry_time_is_what_the_work_in_front_takes() -> None:
    stats = EngineStats(
        queues=(QueueStats(waiting=10, waiting_tokens=20000), QueueStats(waiting=4, waiting_tokens=4000), QueueStats()),
        prefill_tokens_per_s=500.0,
        turn_s=8.0,
    )
    assert retry_after_s(Priority.INTERACTIVE, stats, max_sequences=16) == pytest.approx(2000 / 500)
    assert retry_after_s(Priority.BACKGROUND, stats, max_sequences=16) == pytest.approx((20000 + 1000) / 500)
    assert retry_after_s(Priority.INTERACTIVE, stats, max_sequences=1) == pytest.approx(8.0), "places come free slowly"


QUEUES = st.builds(QueueStats, waiting=st.integers(0, 10**6), waiting_tokens=st.integers(0, 10**12))
SPEED = st.floats(0, 1e9)


@given(queues=st.one_of(st.just(()), st.tuples(QUEUES, QUEUES, QUEUES)), speed=SPEED, turn_s=SPEED)
def test_retry_times_are_positive_and_finite(queues, speed: float, turn_s: float) -> None:
    stats = EngineStats(queues=queues, prefill_tokens_per_s=speed, turn_s=turn_s)
    for priority in Priority:
        seconds = retry_after_s(priority, stats, 64)
        assert math.isfinite(seconds) and LEAST_RETRY_S <= seconds <= MOST_RETRY_S


def test_a_turn_that_would_wait_too_long_is_refused_at_once() -> None:
    admission = TurnAdmission(max_open=1000, max_sequences=4, max_queue_s=6.0)
    stats = EngineStats(queues=tuple(QueueStats() for _ in Priority), turn_s=2.0)
    for _ in range(4 + 12):  # four run, and twelve wait for 6 s: four places a 2 s
        admission.enter(turn(), stats)
    with pytest.raises(CapacityError, match="would wait") as refused:
        admission.enter(turn(), stats)
    assert refused.value.retry_after_s == pytest.approx(0.5)
    admission.enter(turn("another"), stats)
    admission.enter(turn(priority=Priority.BATCH), stats)
    admission.leave(turn())
    admission.leave(turn("another"))
    admission.enter(turn(), stats)


def test_long_prompts_in_the_queue_count() -> None:
    stats = EngineStats(queues=(QueueStats(waiting=2, waiting_tokens=9000),), prefill_tokens_per_s=1000.0, turn_s=0.1)
    assert expected_wait_s(5, stats, max_sequences=4) == pytest.approx(9.0)
    assert expected_wait_s(3, stats, max_sequences=4) == 0.0, "a place is free"
    assert expected_wait_s(50, EngineStats(), max_sequences=4) == 0.0, "nothing is known yet"
