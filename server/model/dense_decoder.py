"""Llama, Mistral, Qwen2 and Qwen3: decoders whose every layer has one MLP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels.attention_batch import AttentionBatch
from ...kernels.decoder import DecoderWeights, decoder
from ...kernels.embedding import embedding
from ...kernels.kv_layout import KVLayout, KVOrder
from ...kernels.linear import PackedLinear, linear
from .causal_lm import Precision
from .config import ModelConfig


@dataclass(frozen=True, slots=True)
class DenseDecoder:
    """A CausalLM. ``output`` may be the ``embedding`` itself (tied)."""

    config: ModelConfig
    precision: Precision
    embedding: PackedLinear
    weights: DecoderWeights
    output: PackedLinear

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_position(self) -> int:
        return self.config.max_position

    def kv_layout(self, block_size: int) -> KVLayout:
        return kv_layout(self.config, self.precision, block_size, self.embedding.storage.device)

    def forward(self, token_ids: Tensor, batch: AttentionBatch, kv_pool: Tensor) -> Tensor:
        return decoder(embedding(token_ids, self.embedding), self.weights, batch, kv_pool)

    def logits(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.output, out_dtype=torch.float32)


def kv_layout(config: ModelConfig, precision: Precision, block_size: int, device: torch.device) -> KVLayout:
    """The pool's layout for a model of this configuration."""
    return KVLayout(
        config.num_layers, config.num_kv_heads, config.head_dim, block_size, precision.dtype, KVOrder.of(device)
    )
