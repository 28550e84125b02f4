"""How a row of logits becomes a token: the parameters of a batch, and what they mean in plain torch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowSampling:
    """One entry a row, on the logits' device. Temperature 0 is greedy; top-k 0, top-p 1 and min-p 0 are off."""

    temperature: Tensor  # [R] float32
    top_k: Tensor  # [R] int32
    top_p: Tensor  # [R] float32
    min_p: Tensor  # [R] float32
    uniform: Tensor  # [R] float32 in [0, 1): decides the draw


def sample(logits: Tensor, rows: RowSampling) -> Tensor:
    """Tokens [R] int64, in float64, one row after the other; see ``sampling.sample``."""
    return torch.stack([_sample_row(logits[row].double(), rows, row) for row in range(logits.shape[0])])


def _sample_row(logits: Tensor, rows: RowSampling, row: int) -> Tensor:
    if float(rows.temperature[row]) == 0.0:
        return (logits == logits.max()).to(torch.uint8).argmax()
    weights = kept_weights(logits, rows, row)
    reached = weights.cumsum(0) > float(rows.uniform[row]) * weights.sum()
    return (reached & (weights > 0)).to(torch.uint8).argmax()


def kept_weights(logits: Tensor, rows: RowSampling, row: int) -> Tensor:
    """[V] float64: probabilities up to a factor, 0 where a filter took the token out."""
    weights = ((logits - logits.max()) / float(rows.temperature[row])).exp()
    ordered, order = logits.sort(descending=True, stable=True)
    floor = float("-inf")
    if 0 < int(rows.top_k[row]) < logits.numel():
        floor = float(ordered[int(rows.top_k[row]) - 1])
    if float(rows.top_p[row]) < 1.0:
        mass = torch.where(ordered >= floor, weights[order], 0.0).cumsum(0)
        enough = int((mass >= float(rows.top_p[row]) * mass[-1]).to(torch.uint8).argmax())
        floor = max(floor, float(ordered[enough]))
    kept = (logits >= floor) & (weights >= float(rows.min_p[row]))
    return torch.where(kept, weights, 0.0)


def verify_drafts(sampled: Tensor, token_ids: Tensor, query_start: Tensor) -> Tensor:
    """Accepted drafts [S] int32; see ``sampling.verify_drafts``."""
    starts = query_start.tolist()
    counts = []
    for first, last in itertools.pairwise(starts):
        equal = (sampled[first : last - 1] == token_ids[first + 1 : last]).tolist()
        counts.append(equal.index(False) if False in equal else len(equal))
    return torch.tensor(counts, dtype=torch.int32, device=sampled.device)
