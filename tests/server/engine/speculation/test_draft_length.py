"""What is verified, and what is not, by cost and by how often guesses are right."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from checksum_model import ChecksumModel

from sessile.server.engine.batch import StepArrays
from sessile.server.engine.kv_cache import KVCache
from sessile.server.engine.speculation.acceptance import Acceptance
from sessile.server.engine.speculation.draft_length import DraftLength
from sessile.server.engine.speculation.measure_cost import measure_step_cost
from sessile.server.engine.speculation.proposal import Agreement, Proposal, Source
from sessile.server.engine.speculation.step_cost import StepCost

FLAT = {1: 1.0, 64: 1.0}
STEEP = {1: 1.0, 64: 64.0}
TILES = {1: 1.0, 8: 1.0, 9: 2.0, 16: 2.0, 17: 3.0, 24: 3.0, 64: 8.0}


def best_rate(probabilities: np.ndarray, turns: int, curve: np.ndarray, budget: int) -> float:
    """Of all lengths, tried one by one."""
    rates = []
    for lengths in itertools.product(range(probabilities.shape[1] + 1), repeat=len(probabilities)):
        if sum(lengths) <= budget:
            gain = sum(row[:length].sum() for row, length in zip(probabilities, lengths, strict=True))
            rates.append((turns + gain) / curve[turns + sum(lengths)])
    return max(rates)


@pytest.mark.parametrize("measured", [FLAT, STEEP, TILES])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("budget", [3, 40])
def test_the_most_tokens_a_second(measured: dict[int, float], seed: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    probabilities = np.cumprod(rng.uniform(0.2, 1.0, (3, 4)), axis=1)
    probabilities[1, 2:] = 0.0  # a short guess
    cost = StepCost(64, measured)
    lengths = DraftLength(cost).choose(probabilities, 4, budget)
    assert lengths.sum() <= budget and lengths[1] <= 2
    gain = sum(row[:length].sum() for row, length in zip(probabilities, lengths, strict=True))
    rate = (4 + gain) / cost.curve[4 + lengths.sum()]
    assert rate >= best_rate(probabilities, 4, cost.curve, budget) / 1.011


def test_nothing_is_verified_where_rows_cost_what_they_bring() -> None:
    hopeless = np.full((2, 4), 0.3).cumprod(axis=1)
    assert DraftLength(StepCost(64, STEEP)).choose(hopeless, 2, 64).sum() == 0
    assert DraftLength(StepCost(64, FLAT)).choose(hopeless, 2, 64).sum() == 8


def test_the_cost_follows_what_steps_take_whatever_their_common_factor() -> None:
    cost = StepCost(64, FLAT)
    for _ in range(400):
        for rows in (1, 8, 64):
            cost.observe(rows, 5.0 * (1.0 + rows / 64))
    ratio = cost.curve[64] / cost.curve[1]
    assert ratio == pytest.approx(2.0 / (1 + 1 / 64), rel=0.1)
    assert (np.diff(cost.curve) >= 0).all()


def test_a_step_that_was_disturbed_counts_little() -> None:
    cost = StepCost(64, FLAT)
    before = cost.curve.copy()
    cost.observe(8, 1000.0)
    for _ in range(40):
        cost.observe(1, 1.0)
    assert cost.curve[8] < 1.2 * before[8]


def test_a_slow_model_is_measured_where_it_matters_and_the_rest_is_guessed() -> None:
    class Slow:
        """Steps that read weights for a second, whatever their rows."""

        def __init__(self) -> None:
            self.rows: list[int] = []
            self.now = 0.0

        def run(self, arrays: StepArrays) -> torch.Tensor:
            self.rows.append(len(arrays.logits_rows))
            self.now += 1.0 + 0.01 * self.rows[-1]
            return torch.zeros(len(arrays.logits_rows), 2)

    slow = Slow()
    kv_cache = KVCache(ChecksumModel().kv_layout(16), 32, torch.device("cpu"))
    measured = measure_step_cost(slow, kv_cache, 512, lambda: slow.now)
    assert slow.rows == [1, 8]
    cost = StepCost(512, measured)
    assert cost.curve[8] < 1.5 * cost.curve[1]
    assert cost.curve[8] < cost.curve[64] < 8 * cost.curve[8]
    likely = np.full((1, 7), 0.9).cumprod(axis=1)
    assert DraftLength(cost).choose(likely, 1, 64).sum() >= 6


def proposal(length: int, agreement: Agreement = Agreement.SINGLE) -> Proposal:
    return Proposal((1, 2, 3, 4), Source.SESSION, length, agreement)


def test_acceptance_is_learned_by_the_length_of_the_match() -> None:
    acceptance = Acceptance(longest=4)
    for _ in range(300):
        acceptance.observe(proposal(2), right=0, known=1)
        acceptance.observe(proposal(16), right=4, known=5)
    assert acceptance.curve(proposal(2))[0] < 0.05
    assert acceptance.curve(proposal(16))[3] > 0.9
    assert (np.diff(acceptance.curve(proposal(5, Agreement.SPLIT))) <= 0).all()


def test_what_was_not_seen_is_not_counted_as_wrong() -> None:
    """A guess that was not verified says by one token only whether it began right."""
    acceptance = Acceptance(longest=4)
    before = acceptance.curve(proposal(3))[1] / acceptance.curve(proposal(3))[0]
    for _ in range(128):
        acceptance.observe(proposal(3), right=1, known=1)
    curve = acceptance.curve(proposal(3))
    assert curve[0] > 0.9
    assert curve[1] / curve[0] == pytest.approx(before)
