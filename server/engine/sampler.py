"""Chooses the next token of each turn from its logits.

Each row is judged alone and its random number depends on the turn's seed and the token's position only, so a turn's
tokens are the same alone, in any batch, after a preemption or a restart, and with drafts or without: the row behind a
draft is sampled as if the draft were the turn's own.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import torch

from .messages import TokenLogprobs
from .sampling_params import SamplingParams
from .sequence import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class SampleRow:
    """A row of logits: of what follows the tokens of ``sequence`` and then ``drafted``, which are guesses."""

    sequence: Sequence
    drafted: tuple[int, ...] = ()

    @property
    def params(self) -> SamplingParams:
        return self.sequence.turn.sampling

    @property
    def position(self) -> int:
        """Of the token that is sampled."""
        return self.sequence.num_tokens + len(self.drafted)

    @property
    def num_output_tokens(self) -> int:
        """Sampled and drafted tokens before this one."""
        return self.sequence.num_output_tokens + len(self.drafted)


@dataclasses.dataclass(frozen=True, slots=True)
class SampledToken:
    """One sampled token, with its log probabilities where the turn asked for them."""

    token_id: int
    logprobs: TokenLogprobs | None


def num_right(drafts: tuple[int, ...], sampled: list[SampledToken]) -> int:
    """How many of ``drafts`` are what was sampled in their place, before the first that is not; ``sampled`` has a token
    for each, and the one behind them."""
    agree = (draft == token.token_id for draft, token in zip(drafts, sampled, strict=False))
    return sum(1 for _ in itertools.takewhile(bool, agree))


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on ``seed`` and ``position`` alone (Philox, counter based)."""
    key = np.array([seed, position], dtype=np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key)).random())


def sample(logits: torch.Tensor, rows: list[SampleRow]) -> list[SampledToken]:
    """The next token of each of ``rows``; ``logits`` is [len(rows), vocab_size] float32, changed where tokens are
    barred."""
    if not rows:  # a step of chunks that end inside their prompts
        return []
    bar_stop_tokens(logits, rows)
    token_ids: list[int] = logits.argmax(dim=-1).tolist()
    for index, row in enumerate(rows):
        if row.params.temperature > 0:
            token_ids[index] = _draw(logits[index], row.params, row.position)
    return [
        SampledToken(token_id, logprobs_of(logits[index], token_id, row.params.logprobs))
        for index, (token_id, row) in enumerate(zip(token_ids, rows, strict=True))
    ]


def bar_stop_tokens(logits: torch.Tensor, rows: list[SampleRow]) -> None:
    """Bars the tokens that would end a turn before its ``min_tokens``. Changes ``logits``."""
    for index, row in enumerate(rows):
        if row.num_output_tokens < row.params.min_tokens and row.sequence.stop_token_ids:
            logits[index, list(row.sequence.stop_token_ids)] = -torch.inf


def _draw(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """Temperature, then top-k, top-p and min-p, then the inverse of the distribution function at a uniform number.

    Top-p keeps the smallest set of likeliest tokens whose probabilities sum to at least ``top_p`` (Holtzman et al.,
    2019); min-p those with at least ``min_p`` times the likeliest one's probability (Nguyen et al., 2024).
    """
    assert params.seed is not None
    candidates, ids = _candidates(logits, params)
    exact = candidates.double()
    probabilities = torch.softmax((exact - exact.max()) / params.temperature, dim=-1)  # the likeliest is 0: no overflow
    if params.top_p < 1.0:
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.masked_fill(before >= params.top_p, 0.0)
    if params.min_p > 0.0:
        probabilities = probabilities.masked_fill(probabilities < params.min_p * probabilities.max(), 0.0)
    cumulative = probabilities.cumsum(-1)
    target = uniform(params.seed, position) * float(cumulative[-1])
    place = int(torch.searchsorted(cumulative, target, right=True))
    last = int(probabilities.nonzero()[-1])  # rounding may put the target at the very end
    place = min(place, last)
    return place if ids is None else int(ids[place])


def _candidates(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The logits that may be drawn, likeliest first where that matters, and their ids (None: all, in order)."""
    if 0 < params.top_k < logits.numel():
        top = logits.topk(params.top_k)
        return top.values, top.indices
    if params.top_p < 1.0:
        ordered = logits.sort(descending=True, stable=True)
        return ordered.values, ordered.indices
    return logits, None


def logprobs_of(logits: torch.Tensor, token_id: int, num_top: int | None) -> TokenLogprobs | None:
    """Of the model's own distribution, before temperature and filters."""
    if num_top is None:
        return None
    logprobs = torch.log_softmax(logits, dim=-1)
    top = logprobs.topk(num_top)
    return TokenLogprobs(float(logprobs[token_id]), tuple(top.indices.tolist()), tuple(top.values.tolist()))
