"""A model whose logits are pseudo-random and depend on all tokens in its KV, for any vocabulary."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from checksum_model import VOCAB as STATES
from checksum_model import ChecksumModel


class ChanceModel(ChecksumModel):
    """``likely`` tokens have larger logits than others, by ``favour``."""

    def __init__(self, vocab_size: int, likely: Iterable[int] = (), favour: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self._table = torch.randn(STATES, vocab_size, generator=torch.Generator().manual_seed(seed))
        self._table[:, list(likely)] += favour

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        assert len(hidden), "a model is not asked for the logits of nothing"
        return self._table[hidden[:, 0].long()].clone()
