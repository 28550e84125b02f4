"""What changes the logits before a token is drawn: penalties, biases and barred stop tokens.

All rows of a step are changed by one indexed operation, wherever the logits are; a row's numbers depend on that row
alone. Rows that ask for nothing cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from .grammar_masks import StepMasks, apply_masks

if TYPE_CHECKING:
    from .sampler import SampleRow

Rows = Sequence[tuple[int, "SampleRow"]]
"""Rows of the logits that ask for something, with their indices."""


def adjust(logits: torch.Tensor, rows: Rows, masks: StepMasks | None) -> None:
    """Change ``logits`` [R, V], in this order: penalties, biases, stop tokens that come too early, grammars' masks."""
    apply_penalties(logits, rows)
    apply_biases(logits, rows)
    bar_stop_tokens(logits, rows)
    if masks is not None:
        apply_masks(logits, masks)


def apply_penalties(logits: torch.Tensor, rows: Rows) -> None:
    """Change ``logits`` [R, V] by what was said before.

    Repetition (Keskar et al., 2019, "CTRL"): positive logits of tokens in the prompt or the answer are divided by the
    penalty, negative ones multiplied. Frequency and presence (OpenAI's API reference): the logit of a token that the
    answer has ``count`` times loses ``count * frequency_penalty + presence_penalty``. Drafts count as answer.
    """
    rows = [(index, row) for index, row in rows if row.params.has_penalties]
    if not rows:
        return
    found = []
    for _, row in rows:
        assert row.sequence.counts is not None
        found.append(row.sequence.counts.behind(row.drafted))
    lengths = [len(ids) for ids, _ in found]
    place = (_repeated([index for index, _ in rows], lengths, logits), _joined([ids for ids, _ in found], logits))
    counts = _joined([counts for _, counts in found], logits).float()
    penalties = torch.tensor(
        [[row.params.repetition_penalty, row.params.frequency_penalty, row.params.presence_penalty] for _, row in rows]
    )
    repetition, frequency, presence = penalties.repeat_interleave(torch.tensor(lengths), dim=0).to(logits.device).T
    values = logits[place]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[place] = values - counts * frequency - (counts > 0) * presence


def apply_biases(logits: torch.Tensor, rows: Rows) -> None:
    """Add each row's ``logit_bias``. Changes ``logits`` [R, V]."""
    rows = [(index, row) for index, row in rows if row.params.logit_bias]
    if not rows:
        return
    biases = [row.params.logit_bias for _, row in rows]
    lengths = [len(bias) for bias in biases]
    ids = _joined([np.fromiter(bias, dtype=np.int64, count=len(bias)) for bias in biases], logits)
    values = torch.tensor([value for bias in biases for value in bias.values()], dtype=torch.float32)
    place = (_repeated([index for index, _ in rows], lengths, logits), ids)
    logits[place] = logits[place] + values.to(logits.device)


def bar_stop_tokens(logits: torch.Tensor, rows: Rows) -> None:
    """Bar the tokens that would end a turn before its ``min_tokens``. Changes ``logits``. A turn with a grammar is left
    out: there its mask does so, where it leaves another way."""
    for index, row in rows:
        if row.bars_stop_tokens and row.sequence.grammar is None:
            logits[index, list(row.sequence.stop_token_ids)] = -torch.inf


def _repeated(indices: list[int], lengths: list[int], logits: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.repeat(np.array(indices, dtype=np.int64), lengths)).to(logits.device)


def _joined(
    arrays: Sequence[npt.NDArray[np.int64]] | Sequence[npt.NDArray[np.int32]], logits: torch.Tensor
) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(arrays)).to(logits.device)
