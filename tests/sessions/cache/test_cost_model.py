"""The cost model against the formulas it stands for, brute force, and machines that change under it."""

from __future__ import annotations

import math
import random

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sessile.sessions.cache.cost_model import (
    Calibration,
    CostModel,
    LoadSample,
    PrefillSample,
    Source,
    calibrate,
)
from sessile.sessions.cache.linear_fit import LinearFit, fit
from sessile.sessions.cache.tiers import Tier

BLOCK_SIZE, BLOCK_BYTES = 16, 368_640
# About what two CPU cores do: 1 ms a pass, 1,000 tokens/s, attention on top; disk 2 GB/s, shared 0.2 GB/s.
CALIBRATION = Calibration(
    prefill=(1e-3, 1e-3, 1e-7),
    loads={"host": (5e-6, 1e-10), "disk": (2e-4, 5e-10), "shared": (5e-3, 5e-9)},
)
LOWER = [Tier.HOST, Tier.DISK, Tier.SHARED]
POSITIVE = st.floats(1e-9, 1e3)


def model(**changes: object) -> CostModel:
    return CostModel(CALIBRATION, BLOCK_SIZE, BLOCK_BYTES, **changes)


# -- predictions ---------------------------------------------------------------------------------------------------


def test_predictions_are_the_formulas():
    cost = model()
    assert cost.prefill_s(100, 1000) == pytest.approx(1e-3 + 0.1 + 1e-7 * 100 * 1050)
    assert cost.load_s(Tier.DISK, 10**6) == pytest.approx(2e-4 + 5e-4)
    assert cost.prefill_s(0, 5000) == cost.load_s(Tier.DEVICE, 10**9) == cost.load_s(Tier.DISK, 0) == 0.0


def test_the_attention_term_is_the_sum_over_tokens():
    """Token i of n new ones on a context of c looks at c + i + 1/2 tokens on average."""
    cost = CostModel(Calibration(prefill=(0.0, 0.0, 1.0), loads={}), BLOCK_SIZE, BLOCK_BYTES)
    for n, c in ((1, 0), (7, 3), (64, 1000)):
        assert cost.prefill_s(n, c) == pytest.approx(sum(c + i + 0.5 for i in range(n)))


@settings(max_examples=50)
@given(a=POSITIVE, b=POSITIVE, d=st.floats(1e-9, 1.0))
def test_calibration_finds_the_coefficients_of_a_machine_that_has_them(a: float, b: float, d: float):
    cases = [(n, c) for n in (1, 16, 64, 256, 512) for c in (0, 512, 2048)]
    samples = [PrefillSample(n, c, a + b * n + d * n * (c + n / 2)) for n, c in cases]
    loads = {Tier.DISK: [LoadSample(k, 1e-4 + k * 1e-9) for k in (10**5, 10**6, 10**8)]}
    cost = CostModel(calibrate(samples, loads), BLOCK_SIZE, BLOCK_BYTES)
    for n, c in [*cases, (1000, 3000)]:
        assert cost.prefill_s(n, c) == pytest.approx(a + b * n + d * n * (c + n / 2), rel=1e-2)
    assert cost.load_s(Tier.DISK, 10**7) == pytest.approx(1e-4 + 1e-2, rel=1e-3)


def test_calibration_of_noisy_measurements():
    rng = random.Random(1)
    cases = [(n, c) for n in (1, 16, 64, 256, 512) for c in (0, 512, 2048) for _ in range(3)]
    samples = [
        PrefillSample(n, c, (1e-3 + 1e-3 * n + 1e-7 * n * (c + n / 2)) * rng.uniform(1.0, 1.3)) for n, c in cases
    ]
    cost = CostModel(calibrate(samples, {}), BLOCK_SIZE, BLOCK_BYTES)
    for n, c in ((32, 1000), (400, 100), (512, 4000)):
        assert cost.prefill_s(n, c) == pytest.approx(model().prefill_s(n, c) * 1.15, rel=0.15)


def test_a_calibration_without_measurements_is_refused():
    with pytest.raises(ValueError, match="took time"):
        calibrate([], {})
    with pytest.raises(ValueError, match="took time"):
        fit([(1.0, 2.0)], [0.0])


def test_a_calibration_can_be_kept():
    assert msgspec.json.decode(msgspec.json.encode(model().calibration()), type=Calibration) == CALIBRATION


# -- decisions -----------------------------------------------------------------------------------------------------

SOURCES = st.lists(
    st.builds(Source, st.sampled_from(list(Tier)), st.integers(1, 40), st.sampled_from([0.0, 0.5, 1.0])), max_size=6
)


@settings(max_examples=100, deadline=None)
@given(sources=SOURCES, rest=st.integers(0, 3000), seed=st.integers(0, 10**6), margin=st.sampled_from([0.0, 0.1, 1.0]))
def test_the_plan_is_the_best_of_all_places_to_stop(sources: list[Source], rest: int, seed: int, margin: float):
    rng = random.Random(seed)
    calibration = Calibration(
        prefill=(rng.uniform(0, 0.1), 10 ** rng.uniform(-6, -2), 10 ** rng.uniform(-10, -6)),
        loads={tier.value: (10 ** rng.uniform(-6, 0), 10 ** rng.uniform(-11, -6)) for tier in LOWER},
        cached_disk=rng.choice([None, (10 ** rng.uniform(-6, 0), 10 ** rng.uniform(-11, -6))]),
    )
    cost = CostModel(calibration, BLOCK_SIZE, BLOCK_BYTES, margin)
    tiers = [source.tier for source in sources for _ in range(source.num_blocks)]
    cached = [source.cached * (source.tier is Tier.DISK) for source in sources for _ in range(source.num_blocks)]
    num_tokens = len(tiers) * BLOCK_SIZE + rest
    first = next((i for i, tier in enumerate(tiers) if tier is not Tier.DEVICE), len(tiers))

    def seconds(stop: int) -> tuple[float, float]:
        load = 0.0
        for tier in LOWER:
            count = tiers[first:stop].count(tier)
            share = sum(cached[first:stop]) / count if tier is Tier.DISK and count else 0.0
            load += cost.load_s(tier, count * BLOCK_BYTES, share)
        return load, cost.prefill_s(num_tokens - stop * BLOCK_SIZE, stop * BLOCK_SIZE)

    plan = cost.plan_load(sources, num_tokens)
    assert (plan.load_s, plan.compute_s) == pytest.approx(seconds(plan.num_blocks))
    assert plan.compute_all_s == pytest.approx(seconds(first)[1])
    best = min(load * (1 + margin) + compute for load, compute in map(seconds, range(first, len(tiers) + 1)))
    assert plan.load_s * (1 + margin) + plan.compute_s == pytest.approx(best)
    assert plan.saved_s >= -1e-9
    assert not cost.decisions.loaded and not cost.decisions.recomputed, "a plan is not a decision"


def test_decisions_are_counted_by_tier() -> None:
    cost = model()
    cost.count_loads([Source(Tier.HOST, 3), Source(Tier.DISK, 2)], [Source(Tier.DISK, 4)])
    cost.count_loads([Source(Tier.HOST, 1)], [])
    assert cost.decisions.loaded == {Tier.HOST: 4, Tier.DISK: 2}
    assert cost.decisions.recomputed == {Tier.DISK: 4}


def test_a_hit_in_a_slow_tier_that_loses_to_computing_is_not_loaded():
    """SGLang #26305: a hit in the slow tier (2,450 ms) lost to recomputing (1,725 ms)."""
    slow = Calibration(prefill=(0.0, 1.725 / 6000, 0.0), loads={"shared": (0.0, 2.45 / (375 * BLOCK_BYTES))})
    cost = CostModel(slow, BLOCK_SIZE, BLOCK_BYTES)
    assert cost.plan_load([Source(Tier.SHARED, 375)], 6100).num_blocks == 0
    fast = Calibration(prefill=slow.prefill, loads={"shared": (0.0, 0.8 / (375 * BLOCK_BYTES))})
    assert CostModel(fast, BLOCK_SIZE, BLOCK_BYTES).plan_load([Source(Tier.SHARED, 375)], 6100).num_blocks == 375


def test_a_part_is_loaded_where_only_a_part_pays():
    slow = Calibration(prefill=CALIBRATION.prefill, loads={**CALIBRATION.loads, "shared": (0.05, 5e-9)})
    cost = CostModel(slow, BLOCK_SIZE, BLOCK_BYTES)
    plan = cost.plan_load([Source(Tier.DEVICE, 2), Source(Tier.DISK, 50), Source(Tier.SHARED, 1)], 1000)
    assert plan.num_blocks == 52, "the one block of the slow tier is computed"
    assert cost.plan_load([Source(Tier.DISK, 50), Source(Tier.SHARED, 12)], 1000).num_blocks == 62


def test_a_tier_that_was_never_measured_is_not_loaded_from_before_it_was():
    cost = CostModel(Calibration(prefill=CALIBRATION.prefill, loads={}), BLOCK_SIZE, BLOCK_BYTES)
    assert cost.load_s(Tier.DISK, 1) == math.inf
    assert cost.plan_load([Source(Tier.DISK, 100)], 2000).num_blocks == 0
    cost.observe_load(Tier.DISK, 10**8, 0.05)
    assert cost.load_s(Tier.DISK, 10**8) == pytest.approx(0.05)
    assert cost.plan_load([Source(Tier.DISK, 100)], 2000).num_blocks == 100


TWO_SPEEDS = Calibration(prefill=CALIBRATION.prefill, loads={"disk": (1e-3, 5e-8)}, cached_disk=(1e-4, 2e-10))


def test_the_disk_has_two_speeds() -> None:
    cost = CostModel(TWO_SPEEDS, BLOCK_SIZE, BLOCK_BYTES)
    cold, cached = cost.load_s(Tier.DISK, 10**6), cost.load_s(Tier.DISK, 10**6, cached=1.0)
    assert (cold, cached) == (pytest.approx(1e-3 + 0.05), pytest.approx(1e-4 + 2e-4))
    half = cost.load_s(Tier.DISK, 10**6, cached=0.5)
    assert half == pytest.approx(cost.load_s(Tier.DISK, 5 * 10**5) + cost.load_s(Tier.DISK, 5 * 10**5, cached=1.0))
    assert cost.plan_load([Source(Tier.DISK, 100, 1.0)], 1700).num_blocks == 100
    assert cost.plan_load([Source(Tier.DISK, 100, 0.0)], 1700).num_blocks == 0, "cold, it is slower than computing"
    assert cost.plan_load([Source(Tier.DISK, 60, 1.0), Source(Tier.DISK, 40)], 1700).num_blocks == 60
    kept = CostModel(cost.calibration(), BLOCK_SIZE, BLOCK_BYTES)
    assert kept.load_s(Tier.DISK, 10**6, cached=1.0) == pytest.approx(cached)


def test_each_speed_of_the_disk_is_learnt_from_its_own_loads() -> None:
    """A page cache that comes and goes, 40 times as fast as the disk: neither speed is taken for the other's."""
    cost = CostModel(TWO_SPEEDS, BLOCK_SIZE, BLOCK_BYTES)
    rng = random.Random(0)

    def seconds(num_bytes: int, cached: float) -> float:
        return (2e-3 + 2e-8 * num_bytes) * (1 - cached) + (1e-4 + 5e-10 * num_bytes) * cached

    for _ in range(60):
        num_bytes, cached = rng.randrange(10, 400) * BLOCK_BYTES, rng.choice([0.0, 1.0])
        cost.observe_load(Tier.DISK, num_bytes, seconds(num_bytes, cached) * rng.uniform(0.9, 1.1), cached)
    for num_bytes in (20 * BLOCK_BYTES, 375 * BLOCK_BYTES):
        for cached in (0.0, 1.0):
            assert cost.load_s(Tier.DISK, num_bytes, cached) == pytest.approx(seconds(num_bytes, cached), rel=0.2)
    assert cost.load_accuracy[Tier.DISK].typical_factor < 1.5


def test_break_even_is_where_it_says():
    for margin in (0.0, 0.5):
        cost = model(margin=margin)
        for tier in LOWER:
            tokens = cost.break_even_tokens(tier, context=500)
            assert tokens is not None and tokens % BLOCK_SIZE == 0

            def wins(n: int, tier: Tier = tier, cost: CostModel = cost, margin: float = margin) -> bool:
                return cost.load_s(tier, n // BLOCK_SIZE * BLOCK_BYTES) * (1 + margin) < cost.prefill_s(n, 500)

            assert wins(tokens) and (tokens == BLOCK_SIZE or not wins(tokens - BLOCK_SIZE))
    hopeless = Calibration(prefill=(0.0, 1e-6, 0.0), loads={"shared": (1.0, 1e-6)})
    assert CostModel(hopeless, BLOCK_SIZE, BLOCK_BYTES).break_even_tokens(Tier.SHARED) is None


def test_what_is_worth_demoting():
    cost = model()
    assert cost.worth_demoting(Tier.HOST, 10, context=1000, reuse_probability=0.5)
    assert not cost.worth_demoting(Tier.HOST, 10, context=1000, reuse_probability=0.0)
    slow = CostModel(Calibration(prefill=(0.0, 1e-6, 0.0), loads={"shared": (1.0, 1e-6)}), BLOCK_SIZE, BLOCK_BYTES)
    assert not slow.worth_demoting(Tier.SHARED, 10, context=1000, reuse_probability=1.0)
    assert cost.decisions.demoted == {Tier.HOST: 10} and cost.decisions.not_demoted == {Tier.HOST: 10}


# -- learning ------------------------------------------------------------------------------------------------------


def machine(factor: float, rng: random.Random) -> tuple[int, int, float]:
    n, c = rng.choice([16, 64, 256, 512]), rng.choice([0, 500, 4000])
    return n, c, factor * model().prefill_s(n, c) * rng.uniform(0.9, 1.2)


@pytest.mark.parametrize("factor", [0.2, 0.5, 3.0, 8.0])
def test_it_follows_a_machine_that_changes_and_changes_back(factor: float):
    cost, rng = model(), random.Random(7)
    for now in (factor, 1.0):
        for _ in range(150):
            cost.observe_prefill(*machine(now, rng))
        for n, c in ((16, 0), (200, 1000), (512, 4000)):
            assert cost.prefill_s(n, c) == pytest.approx(now * 1.05 * model().prefill_s(n, c), rel=0.25)
    assert 1.0 < cost.prefill_accuracy.typical_factor < max(factor, 1 / factor)


def test_one_stall_moves_it_little():
    cost, rng = model(), random.Random(3)
    for _ in range(100):
        cost.observe_prefill(*machine(1.0, rng))
    before = cost.prefill_s(200, 1000)
    cost.observe_prefill(200, 1000, 1000.0)
    assert cost.prefill_s(200, 1000) < 1.15 * before


def test_observations_that_look_alike_leave_the_other_coefficients_alone():
    cost = model()
    for _ in range(500):
        cost.observe_load(Tier.DISK, BLOCK_BYTES, 2 * model().load_s(Tier.DISK, BLOCK_BYTES))
    ratio = cost.load_s(Tier.DISK, 100 * BLOCK_BYTES) / model().load_s(Tier.DISK, 100 * BLOCK_BYTES)
    assert 1.0 < ratio < 3.0


@settings(max_examples=60, deadline=None)
@example(seen=[(1832, 0, 5e-324)])
@given(
    seen=st.lists(
        st.tuples(st.integers(1, 4096), st.integers(0, 100_000), st.floats(allow_nan=True, allow_infinity=True)),
        max_size=60,
    )
)
def test_whatever_it_sees_predictions_stay_bounded_and_monotone(seen: list[tuple[int, int, float]]):
    cost = model()
    for observation in seen:
        cost.observe_prefill(*observation)
        cost.observe_load(Tier.DISK, observation[0] * 1000, observation[2])
    for n, c in ((1, 0), (100, 0), (100, 5000), (4000, 5000)):
        ratio = cost.prefill_s(n, c) / model().prefill_s(n, c)
        assert 1 / 20.001 <= ratio <= 20.001
        assert cost.prefill_s(n + 16, c) >= cost.prefill_s(n, c) * (1 - 1e-9)
        assert cost.prefill_s(n, c + 16) >= cost.prefill_s(n, c) * (1 - 1e-9)
        assert 1 / 20.001 <= cost.load_s(Tier.DISK, n) / model().load_s(Tier.DISK, n) <= 20.001


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=12), data=st.data())
def test_a_fit_is_not_worse_than_any_other_non_negative_choice(rows: list[tuple[float, float]], data: st.DataObject):
    seconds = data.draw(st.lists(POSITIVE, min_size=len(rows), max_size=len(rows)))
    found = fit(rows, seconds)

    def error(coefficients: tuple[float, ...]) -> float:
        return float(sum((np.dot(row, coefficients) / s - 1) ** 2 for row, s in zip(rows, seconds, strict=True)))

    assert min(found) >= 0
    for scale in (0.0, 0.5, 0.9, 1.1, 2.0):
        for other in ((found[0] * scale, found[1]), (found[0], found[1] * scale)):
            assert error(found) <= error(other) + 1e-6


def test_many_predictions_are_the_single_ones():
    one = LinearFit((1.0, 2.0))
    rows = np.array([[1.0, 3.0], [0.0, 0.0], [2.0, 1e6]])
    assert one.predict_many(rows).tolist() == [one.predict(row) for row in rows]
