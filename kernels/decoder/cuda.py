"""A dense decoder on a GPU: the residual stream is added inside the norms, or inside the linear layers for few rows."""

from __future__ import annotations

from torch import Tensor

from ..attention_batch import AttentionBatch
from ..cuda_config import CudaConfig
from ..linear.packed import PackedLinear
from ..linear.triton import gated_linear, linear, norm_linear
from ..paged_attention.triton import paged_attention
from ..rms_norm.triton import add_rms_norm, rms_norm
from ..rotary.triton import rotary_kv_write
from ..silu_mul.triton import silu_mul
from .layers import DecoderLayer, DecoderWeights


def decoder(x: Tensor, weights: DecoderWeights, batch: AttentionBatch, kv_pool: Tensor, config: CudaConfig) -> Tensor:
    """As the wrapper; activations keep the dtype of ``x``."""
    few = x.shape[0] <= config.rows_skinny and not config.is_deterministic
    if few and all(_narrow(layer.qkv) and _narrow(layer.gate_up) for layer in weights.layers):
        return _few_rows(x, weights, batch, kv_pool, config)
    return _many_rows(x, weights, batch, kv_pool, config)


def _many_rows(
    x: Tensor, weights: DecoderWeights, batch: AttentionBatch, kv_pool: Tensor, config: CudaConfig
) -> Tensor:
    residual: Tensor | None = None
    for index, layer in enumerate(weights.layers):
        normed, residual = _add_norm(x, residual, layer.input_norm, weights.eps)
        qkv = linear(normed, layer.qkv, layer.qkv_bias, None, None, config)
        attended = _attend(qkv, index, layer, weights, batch, kv_pool, config)
        x = linear(attended, layer.o, layer.o_bias, None, None, config)
        normed, residual = _add_norm(x, residual, layer.post_norm, weights.eps)
        gated = silu_mul(linear(normed, layer.gate_up, None, None, None, config))
        x = linear(gated, layer.down, None, None, None, config)
    return _add_norm(x, residual, weights.final_norm, weights.eps)[0]


def _few_rows(x: Tensor, weights: DecoderWeights, batch: AttentionBatch, kv_pool: Tensor, config: CudaConfig) -> Tensor:
    """Seven launches a layer or fewer: here the weights' bytes are all that counts, and launches between them cost."""
    for index, layer in enumerate(weights.layers):
        qkv = norm_linear(x, layer.input_norm, weights.eps, layer.qkv, layer.qkv_bias, config)
        attended = _attend(qkv, index, layer, weights, batch, kv_pool, config)
        x = linear(attended, layer.o, layer.o_bias, x, None, config)
        gated = gated_linear(x, layer.post_norm, weights.eps, layer.gate_up, config)
        x = linear(gated, layer.down, None, x, None, config)
    return rms_norm(x, weights.final_norm, weights.eps)


def _attend(
    qkv: Tensor,
    index: int,
    layer: DecoderLayer,
    weights: DecoderWeights,
    batch: AttentionBatch,
    kv_pool: Tensor,
    config: CudaConfig,
) -> Tensor:
    q = rotary_kv_write(qkv, weights.cos_sin, batch, kv_pool, index, weights.heads, layer.qk_norm)
    return paged_attention(q, kv_pool, index, batch, weights.attention_scale, config)


def _add_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of the sum, and the sum."""
    if residual is None:
        return rms_norm(x, weight, eps), x
    return add_rms_norm(x, residual, weight, eps)


def _narrow(packed: PackedLinear) -> bool:
    return packed.storage.dtype.itemsize < 4
