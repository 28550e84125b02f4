"""Llama, Mistral, Qwen2 and Qwen3: decoders whose every layer has one MLP."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...kernels.attention_batch import AttentionBatch
from ...kernels.decoder import DecoderWeights, decoder
from ...kernels.embedding import embedding
from .packed_decoder import PackedDecoder


@dataclass(frozen=True, slots=True)
class DenseDecoder(PackedDecoder):
    """A CausalLM whose layers run in one call."""

    weights: DecoderWeights

    def forward(self, token_ids: Tensor, batch: AttentionBatch, kv_pool: Tensor) -> Tensor:
        return decoder(embedding(token_ids, self.embedding), self.weights, batch, kv_pool)
