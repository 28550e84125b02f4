"""Runs the model on a step's batch."""

from __future__ import annotations

from typing import Protocol

import torch

from ..model.causal_lm import CausalLM
from .batch import StepArrays, to_device
from .kv_cache import KVCache


class Runner(Protocol):
    """What the engine's step asks of a runner."""

    def run(self, arrays: StepArrays) -> torch.Tensor:
        """Compute the batch, writing its KV to the pool; returns logits [len(rows), vocab_size] float32, which stand
        until the next call."""
        ...


class ModelRunner:
    """Holds the model and the KV tensors that it writes."""

    def __init__(self, model: CausalLM, kv_cache: KVCache, device: torch.device) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._device = device

    def run(self, arrays: StepArrays) -> torch.Tensor:
        """See ``Runner``."""
        batch = to_device(arrays, self._device)
        hidden = self._model.forward(batch.token_ids, batch.attention, self._kv_cache.pool)
        if not len(arrays.logits_rows):  # chunks in the middle of prompts only
            return hidden.new_empty(0, 0)
        return self._model.logits(hidden[batch.logits_rows])
