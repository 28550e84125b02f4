"""The decoder through the C++ kernels: its description, made once, and the call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..attention_batch import AttentionBatch
from ..cpu.library import (
    BatchArgs,
    CpuLibrary,
    DecoderArgs,
    DecoderLayerArgs,
    HeadsArgs,
    KvLayerArgs,
    pointer,
)

if TYPE_CHECKING:
    from .layers import DecoderLayer, DecoderWeights

_COLUMNS = 32


@dataclass(frozen=True, slots=True)
class NativeDecoder:
    """A decoder as C++ reads it. Points into the weights that it was made of."""

    args: DecoderArgs
    layers: ctypes.Array[DecoderLayerArgs]


def describe(weights: DecoderWeights) -> NativeDecoder | None:
    """None where the C++ decoder does not fit: a weight kept for torch, or sizes that are no multiple of 32."""
    packed = [p for layer in weights.layers for p in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    inner = weights.layers[0].down.in_features
    if not all(p.in_blocks for p in packed) or weights.heads.head_dim % _COLUMNS or inner % _COLUMNS:
        return None
    layers = (DecoderLayerArgs * len(weights.layers))(*(_describe_layer(layer) for layer in weights.layers))
    heads = weights.heads
    args = DecoderArgs(
        ctypes.addressof(layers),
        len(weights.layers),
        weights.final_norm.numel(),
        inner,
        pointer(weights.final_norm),
        pointer(weights.cos_sin),
        HeadsArgs(heads.num_heads, heads.num_kv_heads, heads.head_dim),
        weights.attention_scale,
        weights.eps,
        _qk_eps(weights.layers),
    )
    return NativeDecoder(args, layers)


def decoder(library: CpuLibrary, x: Tensor, native: NativeDecoder, batch: AttentionBatch, kv_pool: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kv = KvLayerArgs.of(kv_pool, 0, native.args.heads.head_dim)
    layer_stride = kv_pool.stride(1) * kv_pool.element_size()
    batch_args = BatchArgs.of(batch)
    library.call("sessile_decoder", native.args, pointer(x), pointer(out), batch_args, kv, layer_stride)
    return out


def _describe_layer(layer: DecoderLayer) -> DecoderLayerArgs:
    norm = layer.qk_norm
    vectors = (layer.input_norm, layer.post_norm, layer.qkv_bias, layer.o_bias)
    return DecoderLayerArgs(
        *(packed.args for packed in (layer.qkv, layer.o, layer.gate_up, layer.down)),
        *(pointer(t) for t in vectors),
        pointer(None if norm is None else norm.q_weight),
        pointer(None if norm is None else norm.k_weight),
    )


def _qk_eps(layers: Sequence[DecoderLayer]) -> float:
    norm = layers[0].qk_norm
    return 0.0 if norm is None else norm.eps
