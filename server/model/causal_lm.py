"""What the engine asks of a model."""

from __future__ import annotations

import enum
from typing import Protocol

import torch
from torch import Tensor

from ...kernels.attention_batch import AttentionBatch
from ...kernels.kv_layout import KVLayout


class Precision(enum.StrEnum):
    """What weights and KV are kept in; arithmetic between the layers is float32."""

    BFLOAT16 = "bfloat16"  # quantised weights stay quantised
    FLOAT32 = "float32"  # everything widened: for comparisons

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self is Precision.BFLOAT16 else torch.float32


class CausalLM(Protocol):
    """A decoder-only language model over a paged KV pool."""

    @property
    def vocab_size(self) -> int:
        """Columns of the logits; a tokenizer may use fewer."""
        ...

    @property
    def max_position(self) -> int:
        """The longest context, in tokens."""
        ...

    def kv_layout(self, block_size: int) -> KVLayout:
        """How the pool that ``forward`` writes to must look."""
        ...

    def forward(self, token_ids: Tensor, batch: AttentionBatch, kv_pool: Tensor) -> Tensor:
        """Hidden states [T, H] float32 of ``token_ids`` [T] int64; writes their KV to ``kv_pool``."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, V] float32 for the rows ``hidden`` [R, H]."""
        ...
