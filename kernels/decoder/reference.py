"""A dense decoder as a composition of the other ops."""

from __future__ import annotations

from torch import Tensor

from ..attention_batch import AttentionBatch
from ..linear import linear
from ..paged_attention import paged_attention
from ..rms_norm import rms_norm
from ..rotary import rotary_kv_write
from ..silu_mul import silu_mul
from .layers import DecoderLayer, DecoderWeights


def decoder(x: Tensor, weights: DecoderWeights, batch: AttentionBatch, kv_pool: Tensor) -> Tensor:
    for index, layer in enumerate(weights.layers):
        x = _layer(x, index, layer, weights, batch, kv_pool)
    return rms_norm(x, weights.final_norm, weights.eps)


def _layer(
    x: Tensor, index: int, layer: DecoderLayer, weights: DecoderWeights, batch: AttentionBatch, kv_pool: Tensor
) -> Tensor:
    qkv = linear(rms_norm(x, layer.input_norm, weights.eps), layer.qkv, layer.qkv_bias)
    q = rotary_kv_write(qkv, weights.cos_sin, batch, kv_pool, index, weights.heads, layer.qk_norm)
    attended = paged_attention(q, kv_pool, index, batch, weights.attention_scale)
    x = linear(attended, layer.o, layer.o_bias, residual=x)
    gated = silu_mul(linear(rms_norm(x, layer.post_norm, weights.eps), layer.gate_up))
    return linear(gated, layer.down, residual=x)
