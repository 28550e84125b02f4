"""Learning how long steps take, and the bound on stalls that is built on it."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sessile.server.engine.scheduler.stall_bound import LEAST_PREFILL, SHARE_BEYOND, StallBound
from sessile.server.engine.scheduler.step_time import StepTimeModel, StepWork
from sessile.server.engine.simulator.step_cost import CPU, GPU, StepCost

COEFFICIENTS = st.builds(
    StepCost,
    step=st.floats(1e-4, 0.05),
    decode_token=st.floats(1e-6, 5e-3),
    decode_context=st.floats(0, 1e-5),
    prefill_token=st.floats(1e-6, 5e-3),
    prefill_pair=st.floats(0, 1e-6),
)


def works(chance: random.Random, count: int) -> list[StepWork]:
    """Prefills, decodes and both, as they come."""
    made: list[StepWork] = []
    for _ in range(count):
        work = StepWork()
        kind = chance.random()
        for _ in range(chance.randint(1, 8) if kind < 0.7 else 0):
            work.add_decode(1, chance.randint(10, 4000))
        if kind > 0.4:
            work.add_prefill(chance.randint(1, 512), chance.randint(0, 4000))
        made.append(work)
    return made


@settings(max_examples=40, deadline=None)
@given(cost=COEFFICIENTS, seed=st.integers(0, 1000))
def test_what_is_predicted_comes_close_to_what_steps_take(cost: StepCost, seed: int) -> None:
    chance = random.Random(seed)
    model = StepTimeModel()
    for work in works(chance, 300):
        model.observe(work, cost.seconds(work, chance))
    for work in works(chance, 30):
        assert model.predict(work) == pytest.approx(cost.seconds(work, chance), rel=0.25)


@pytest.mark.parametrize("cost", [CPU, GPU])
def test_a_lasting_change_is_followed_and_a_stall_is_not(cost: StepCost) -> None:
    chance = random.Random(0)
    model = StepTimeModel()
    for work in works(chance, 300):
        model.observe(work, cost.seconds(work, chance))
    work = works(chance, 1)[0]
    before = model.predict(work)
    model.observe(work, 100 * before)
    assert model.predict(work) < 1.5 * before
    for work in works(chance, 300):
        model.observe(work, 2 * cost.seconds(work, chance))
    for work in works(chance, 30):
        assert model.predict(work) == pytest.approx(2 * cost.seconds(work, chance), rel=0.3)


def test_values_that_no_clock_can_show_are_ignored() -> None:
    model = StepTimeModel()
    work = StepWork(decode_tokens=1, decode_context=10)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        model.observe(work, seconds)
    assert model.predict(work) == 0.0 and model.num_observed == 0


@given(cost=COEFFICIENTS, context=st.integers(0, 100_000), seconds=st.floats(0, 10))
def test_as_many_tokens_as_fit_and_no_more(cost: StepCost, context: int, seconds: float) -> None:
    model = StepTimeModel()
    model._coefficients = [cost.step, cost.decode_token, cost.decode_context, cost.prefill_token, cost.prefill_pair]
    most = model.most_prefill(seconds, context)
    assert model.prefill_s(most, context) <= seconds * (1 + 1e-9) or most == 0
    assert model.prefill_s(most + 2, context) > seconds


@given(cost=COEFFICIENTS, seed=st.integers(0, 10**6), max_stall_s=st.floats(0.01, 1), context=st.integers(0, 30_000))
@example(  # decoding alone takes longer than is aimed at, but less than the bound
    cost=StepCost(0.015625, 0.001953125, 5.7366156648494024e-06, 0.00390625, 0.0),
    seed=0,
    max_stall_s=0.40625,
    context=0,
)
def test_no_chunk_makes_a_step_longer_than_the_bound_when_predictions_are_exact(
    cost: StepCost, seed: int, max_stall_s: float, context: int
) -> None:
    """All prefills of a step together. Where decoding alone takes as long, they add a quarter to it at most."""
    chance = random.Random(seed)
    model = StepTimeModel()
    model._coefficients = [cost.step, cost.decode_token, cost.decode_context, cost.prefill_token, cost.prefill_pair]
    bound = StallBound(model, max_stall_s, most_tokens=10_000)
    work = StepWork()
    for _ in range(chance.randint(1, 16)):
        work.add_decode(1, chance.randint(10, 8000))
    for _ in range(3):
        work.add_prefill(max(0, bound.most_prefill(work, context)), context)
        context = chance.randint(0, 30_000)
    decode_s = cost.seconds(StepWork(work.decode_tokens, work.decode_context), chance)
    most_s = max_stall_s if decode_s < max_stall_s else (1 + SHARE_BEYOND) * decode_s
    assert cost.seconds(work, chance) <= most_s * (1 + 1e-6) or work.prefill_tokens == LEAST_PREFILL


def test_the_margin_follows_what_predictions_are_off_by() -> None:
    """With steps that take up to 30% more or less than predicted, all but a few stay within the bound."""
    chance = random.Random(1)
    bound = StallBound(StepTimeModel(), 0.15, most_tokens=512)
    work = StepWork(decode_tokens=4, prefill_tokens=100)
    beyond = 0
    for index in range(3000):
        aimed_at = 0.15 / bound.margin
        seconds = aimed_at * (1 + 0.3 * (2 * chance.random() - 1))
        beyond += index >= 1000 and seconds > 0.15
        bound.observe(work, aimed_at, seconds)
    assert 1.2 < bound.margin < 1.35
    assert beyond / 2000 < 0.03
