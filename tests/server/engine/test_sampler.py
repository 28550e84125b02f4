"""Sampling against plain numpy, and its promise: a row depends on its seed, position and logits alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sessile.server.engine.messages import SubmitTurn
from sessile.server.engine.sampler import SampleRow, sample, uniform
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.sequence import Sequence
from sessile.sessions.errors import RequestError

VOCAB = 50


def turn(prompt_length: int = 3, **sampling) -> Sequence:
    params = SamplingParams(**{"seed": 1, **sampling})
    submitted = SubmitTurn(turn_id="t", token_ids=list(range(prompt_length)), sampling=params)
    return Sequence(submitted, max_tokens=10, arrival=0.0, order=0)


def logits(seed: int = 0, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def allowed(row: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """The distribution after the filters, [VOCAB] float64, written plainly."""
    p = np.exp(row.double().numpy() / temperature)
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0
        p /= p.sum()
    if top_p < 1:
        kept = np.cumsum(p[order]) - p[order] < top_p
        p[order[~kept]] = 0
        p /= p.sum()
    p[p < min_p * p.max()] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(1.0, 0, 1.0, 0.0), (0.7, 5, 1.0, 0.0), (1.3, 0, 0.6, 0.0), (1.0, 0, 1.0, 0.2), (0.9, 20, 0.8, 0.05)],
)
def test_draws_follow_the_filtered_distribution(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    row = logits()
    expected = allowed(row[0], temperature, top_k, top_p, min_p)
    count = 4000
    seen = np.zeros(VOCAB)
    for seed in range(count):
        sequence = turn(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        seen[sample(row.clone(), [SampleRow(sequence)])[0].token_id] += 1
    assert not seen[expected == 0].any(), "a token that the filters bar was drawn"
    likely = expected * count >= 5
    chi_square = float((((seen - expected * count) ** 2)[likely] / (expected * count)[likely]).sum())
    assert chi_square < 1.8 * likely.sum() + 20, chi_square  # far beyond the 99.9% quantile; the seeds are fixed


def test_a_row_does_not_depend_on_its_batch() -> None:
    batch = logits(seed=3, rows=6)
    sequences = [turn(prompt_length=3 + i, seed=i, top_p=0.9) for i in range(6)]
    together = [token.token_id for token in sample(batch.clone(), [SampleRow(sequence) for sequence in sequences])]
    alone = [sample(batch[i : i + 1].clone(), [SampleRow(sequences[i])])[0].token_id for i in range(6)]
    assert together == alone


def test_the_uniform_number_depends_on_seed_and_position() -> None:
    numbers = {uniform(seed, position) for seed in range(40) for position in range(40)}
    assert len(numbers) == 1600
    assert uniform(2**63 - 1, 8191) == uniform(2**63 - 1, 8191)
    assert abs(np.mean(list(numbers)) - 0.5) < 0.02


def test_logprobs_are_the_models_own() -> None:
    row = logits(seed=5)
    token = sample(row.clone(), [SampleRow(turn(temperature=0.0, logprobs=3))])[0]
    expected = torch.log_softmax(row[0], -1)
    assert token.logprobs is not None
    assert token.logprobs.logprob == pytest.approx(float(expected[token.token_id]))
    assert token.logprobs.top_token_ids == tuple(expected.topk(3).indices.tolist())
    assert token.logprobs.top_token_ids[0] == token.token_id


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", float("nan")),
        ("temperature", -1.0),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", float("nan")),
        ("min_p", 1.5),
        ("top_k", -1),
        ("seed", -1),
        ("seed", 2**63),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("min_tokens", -1),
        ("logprobs", 21),
        ("stop_token_ids", tuple(range(65))),
    ],
)
def test_values_out_of_range_name_their_field(field: str, value: object) -> None:
    with pytest.raises(RequestError) as raised:
        SamplingParams(**{field: value}).validate()
    assert raised.value.field == field
    assert raised.value.remedy


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 5e-324])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_the_lowest_temperatures_are_greedy(temperature: float, filters: dict[str, float]) -> None:
    """Dividing by them overflows."""
    row = logits() * 20
    token = sample(row.clone(), [SampleRow(turn(seed=3, temperature=temperature, **filters))])[0]
    assert token.token_id == int(row.argmax())
