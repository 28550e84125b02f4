"""Sampling and the verification of drafts, interpreted."""

from __future__ import annotations

import pytest
import torch

from sessile.kernels.sampling import RowSampling, filters
from sessile.kernels.sampling import triton as on_gpu


def _rows(settings: list[tuple[float, int, float, float]], uniform: float) -> RowSampling:
    columns = list(zip(*settings, strict=True))
    return RowSampling(
        temperature=torch.tensor(columns[0]),
        top_k=torch.tensor(columns[1], dtype=torch.int32),
        top_p=torch.tensor(columns[2]),
        min_p=torch.tensor(columns[3]),
        uniform=torch.full((len(settings),), uniform),
    )


def test_argmax_takes_the_first_of_equals() -> None:
    logits = torch.randn(3, 5000)
    logits[0, 4999] = logits[0, 4100] = 9.0
    logits[1, 7] = logits[1, 4097] = 9.0
    assert on_gpu.argmax(logits).tolist() == [4100, 7, int(logits[2].argmax())]


SETTINGS = [
    (0.0, 0, 1.0, 0.0),
    (0.7, 0, 1.0, 0.0),
    (1.0, 20, 1.0, 0.0),
    (1.3, 0, 0.9, 0.0),
    (0.6, 20, 0.95, 0.0),
    (1.0, 0, 1.0, 0.1),
    (1.0, 50, 0.8, 0.05),
    (1.0, 1, 1.0, 0.0),
]


@pytest.mark.parametrize(("uniform", "width"), [(0.0, 300), (0.43, 4200), (0.999, 300)])
def test_tokens_equal_the_reference(uniform: float, width: int) -> None:
    logits = torch.randn(len(SETTINGS), width) * 2
    rows = _rows(SETTINGS, uniform)
    assert on_gpu.sample(logits, rows).tolist() == filters.sample(logits, rows).tolist()


def test_draws_follow_the_kept_probabilities() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, 1.5]])
    rows = _rows([(1.0, 3, 1.0, 0.0)], 0.0)
    weights = filters.kept_weights(logits[0].double(), rows, 0)
    assert weights.nonzero().flatten().tolist() == [0, 1, 4]
    edges = (weights.cumsum(0) / weights.sum()).tolist()
    for before, after, token in ((0.0, edges[0], 0), (edges[0], edges[1], 1), (edges[1], 1.0, 4)):
        rows = _rows([(1.0, 3, 1.0, 0.0)], before + (after - before) / 2)
        assert on_gpu.sample(logits, rows).tolist() == [token]


def test_equal_logits_at_the_edge_are_all_kept() -> None:
    logits = torch.zeros(1, 64)
    logits[0, 3] = 1.0
    assert int(on_gpu.sample(logits, _rows([(1.0, 2, 1.0, 0.0)], 0.99))[0]) == 63


def test_a_barred_token_is_never_drawn() -> None:
    logits = torch.full((1, 64), float("-inf"))
    logits[0, 40:42] = 0.0
    found = [int(on_gpu.sample(logits, _rows([(1.0, 0, 0.9, 0.0)], u))[0]) for u in (0.0, 0.999)]
    assert found == [40, 41]


def test_drafts_are_kept_up_to_the_first_wrong_one() -> None:
    token_ids = torch.tensor([5, 6, 7, 8, 1, 2, 9])
    sampled = torch.tensor([6, 7, 0, 3, 2, 4, 9])
    query_start = torch.tensor([0, 4, 6, 7], dtype=torch.int32)
    assert on_gpu.verify_drafts(sampled, token_ids, query_start, 4).tolist() == [2, 1, 0]
    assert filters.verify_drafts(sampled, token_ids, query_start).tolist() == [2, 1, 0]
