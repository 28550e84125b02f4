"""Runs the model on a step's batch."""

from __future__ import annotations

import torch

from ..model.causal_lm import CausalLM
from .batch import StepBatch
from .kv_cache import KVCache


class ModelRunner:
    """Holds the model and the KV tensors that it writes."""

    def __init__(self, model: CausalLM, kv_cache: KVCache) -> None:
        self._model = model
        self._kv_cache = kv_cache

    def run(self, batch: StepBatch) -> torch.Tensor:
        """Compute the batch, writing its KV to the pool; returns logits [len(batch.sampling), vocab_size] float32."""
        hidden = self._model.forward(batch.token_ids, batch.attention, self._kv_cache.pool)
        if not batch.sampling:  # chunks in the middle of prompts only
            return hidden.new_empty(0, 0)
        return self._model.logits(hidden[batch.logits_rows])
