"""Runs the model on a step's batch."""

from __future__ import annotations

from typing import Protocol

import torch

from ...kernels.attention_batch import AttentionBatch
from ...kernels.kv_layout import KVLayout
from .batch import StepBatch
from .kv_cache import KVCache


class CausalModel(Protocol):
    """What the runner needs of a model; ``server.model`` has the real ones."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_position(self) -> int: ...

    def kv_layout(self, block_size: int) -> KVLayout: ...

    def forward(self, token_ids: torch.Tensor, batch: AttentionBatch, kv_pool: torch.Tensor) -> torch.Tensor: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


class ModelRunner:
    """Holds the model and the KV tensors that it writes."""

    def __init__(self, model: CausalModel, kv_cache: KVCache) -> None:
        self._model = model
        self._kv_cache = kv_cache

    def run(self, batch: StepBatch) -> torch.Tensor:
        """Compute the batch, writing its KV to the pool; returns logits [len(batch.sampling), vocab_size] float32."""
        hidden = self._model.forward(batch.token_ids, batch.attention, self._kv_cache.pool)
        return self._model.logits(hidden[batch.logits_rows])
