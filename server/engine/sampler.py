"""Chooses the next token of each turn from its logits.

Each row is judged alone and its random number depends on the turn's seed and the token's position only, so a turn's
tokens are the same alone, in any batch, after a preemption or a restart, and with drafts or without: the row behind a
draft is sampled as if the draft were the turn's own.

The order, that of vLLM's and Hugging Face's processors (linear ones before the mask, so that it has the last word):
repetition, frequency and presence penalties; ``logit_bias``; stop tokens before ``min_tokens``; the grammar's mask;
temperature; top-k; top-p; min-p. Log probabilities are the model's own, before all of it.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import torch

from .grammar_masks import StepMasks
from .logit_adjustments import adjust
from .messages import TokenLogprobs
from .sampling_params import SamplingParams
from .sequence import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class SampleRow:
    """A row of logits: of what follows the tokens of ``sequence``, then ``num_awaited`` that the host does not know yet
    since the step before samples them, and then ``drafted``, which are guesses."""

    sequence: Sequence
    drafted: tuple[int, ...] = ()
    num_awaited: int = 0

    @property
    def params(self) -> SamplingParams:
        return self.sequence.turn.sampling

    @property
    def position(self) -> int:
        """Of the token that is sampled."""
        return self.sequence.num_tokens + self.num_awaited + len(self.drafted)

    @property
    def num_output_tokens(self) -> int:
        """Sampled and drafted tokens before this one."""
        return self.sequence.num_output_tokens + len(self.drafted)

    @property
    def bars_stop_tokens(self) -> bool:
        """The turn may not end yet."""
        return self.num_output_tokens < self.params.min_tokens and bool(self.sequence.stop_token_ids)


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


def sample(logits: torch.Tensor, rows: list[SampleRow], masks: StepMasks | None = None) -> list[SampledToken]:
    """The next token of each of ``rows``; ``logits`` is [len(rows), vocab_size] float32, and is changed. ``masks`` are
    those of the rows whose turns have grammars."""
    if not rows:  # a step of chunks that end inside their prompts
        return []
    asking = AskingRows(logits, rows, masks)
    token_ids: list[int] = logits.argmax(dim=-1).tolist()
    for index, row in enumerate(rows):
        if row.params.temperature > 0:
            token_ids[index] = _draw(logits[index], row.params, row.position)
    return asking.with_logprobs(token_ids)


class AskingRows:
    """The rows of a step that ask for more than a draw. Making it changes their ``logits``."""

    def __init__(self, logits: torch.Tensor, rows: list[SampleRow], masks: StepMasks | None) -> None:
        asking = [(index, row) for index, row in enumerate(rows) if row.sequence.adjusts_logits]
        self._logprobs = {
            index: torch.log_softmax(logits[index], dim=-1) for index, row in asking if row.params.logprobs is not None
        }
        self._rows = rows
        self._forced = {} if masks is None else masks.forced
        if asking:
            adjust(logits, asking, masks)

    def with_logprobs(self, token_ids: list[int]) -> list[SampledToken]:
        """The tokens of the step: what was drawn, or what a grammar forces, and log probabilities where asked for."""
        token_ids = [self._forced.get(index, token_id) for index, token_id in enumerate(token_ids)]
        return [SampledToken(token_id, self._logprobs_of(index, token_id)) for index, token_id in enumerate(token_ids)]

    def _logprobs_of(self, index: int, token_id: int) -> TokenLogprobs | None:
        logprobs = self._logprobs.get(index)
        if logprobs is None:
            return None
        top = logprobs.topk(self._rows[index].params.logprobs or 0)
        return TokenLogprobs(float(logprobs[token_id]), tuple(top.indices.tolist()), tuple(top.values.tolist()))


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
