"""What all our decoders are made of, whatever their layers are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels.kv_layout import KVLayout, KVOrder
from ...kernels.linear import PackedLinear, linear
from .causal_lm import Precision
from .config import ModelConfig


@dataclass(frozen=True, slots=True)
class PackedDecoder:
    """A CausalLM without its layers. ``output`` may be the ``embedding`` itself (tied)."""

    config: ModelConfig
    precision: Precision
    embedding: PackedLinear
    output: PackedLinear

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_position(self) -> int:
        return self.config.max_position

    def kv_layout(self, block_size: int) -> KVLayout:
        config, order = self.config, KVOrder.of(self.embedding.storage.device)
        return KVLayout(
            config.num_layers, config.num_kv_heads, config.head_dim, block_size, self.precision.dtype, order
        )

    def logits(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.output, out_dtype=torch.float32)
