"""Qwen3-MoE: a decoder in which most layers choose a few experts for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ...kernels.attention_batch import AttentionBatch
from ...kernels.embedding import embedding
from ...kernels.linear import PackedLinear, linear
from ...kernels.moe import Experts, moe_mlp
from ...kernels.paged_attention import paged_attention
from ...kernels.rms_norm import rms_norm
from ...kernels.rotary import Heads, QKNorm, rotary_kv_write
from ...kernels.silu_mul import silu_mul
from .packed_decoder import PackedDecoder


@dataclass(frozen=True, slots=True)
class Mlp:
    """One SwiGLU layer."""

    gate_up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """Experts and the layer that chooses among them."""

    router: PackedLinear
    experts: Experts


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. Norms and biases are float32."""

    input_norm: Tensor
    qkv: PackedLinear
    qkv_bias: Tensor | None
    qk_norm: QKNorm | None
    o: PackedLinear
    o_bias: Tensor | None
    post_norm: Tensor
    mlp: Mlp | RoutedExperts


@dataclass(frozen=True, slots=True)
class MoeDecoder(PackedDecoder):
    """A CausalLM whose layers are run op by op."""

    layers: Sequence[Layer]
    final_norm: Tensor
    cos_sin: Tensor

    def forward(self, token_ids: Tensor, batch: AttentionBatch, kv_pool: Tensor) -> Tensor:
        x = embedding(token_ids, self.embedding)
        for index, layer in enumerate(self.layers):
            x = self._attend(x, index, layer, batch, kv_pool)
            x = x + self._mlp(rms_norm(x, layer.post_norm, self.config.rms_norm_eps), layer.mlp)
        return rms_norm(x, self.final_norm, self.config.rms_norm_eps)

    def _attend(self, x: Tensor, index: int, layer: Layer, batch: AttentionBatch, kv_pool: Tensor) -> Tensor:
        config = self.config
        heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim)
        qkv = linear(rms_norm(x, layer.input_norm, config.rms_norm_eps), layer.qkv, layer.qkv_bias)
        q = rotary_kv_write(qkv, self.cos_sin, batch, kv_pool, index, heads, layer.qk_norm)
        attended = paged_attention(q, kv_pool, index, batch, config.head_dim**-0.5)
        return linear(attended, layer.o, layer.o_bias, residual=x)

    def _mlp(self, normed: Tensor, mlp: Mlp | RoutedExperts) -> Tensor:
        if isinstance(mlp, Mlp):
            return linear(silu_mul(linear(normed, mlp.gate_up)), mlp.down)
        return moe_mlp(normed, linear(normed, mlp.router), mlp.experts)
