"""Rotary position embedding (Su et al., 2021, https://arxiv.org/abs/2104.09864), fused with the write of the KV."""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention_batch import AttentionBatch
from ..backend import cpu_library
from ..cpu.library import BatchArgs, HeadsArgs, KvLayerArgs, RotaryArgs, pointer
from . import reference
from .heads import Heads, QKNorm

__all__ = ["Heads", "QKNorm", "cos_sin_table", "rotary_kv_write"]


def rotary_kv_write(
    qkv: Tensor,
    cos_sin: Tensor,
    batch: AttentionBatch,
    kv_pool: Tensor,
    layer: int,
    heads: Heads,
    norm: QKNorm | None = None,
) -> Tensor:
    """Rotates q and k of ``qkv`` [T, (Hq + 2 Hkv) * D] float32, writes k (rotated) and v to ``kv_pool`` at
    ``batch.slot_mapping`` and returns q [T, Hq, D] float32, a new tensor.

    ``cos_sin`` [max_position, D] float32: cosines of the D / 2 angles, then their sines. Pairs are halves apart:
    dimension i turns with i + D / 2. ``norm`` is applied to each head of q and k first. Mutates ``kv_pool``.
    """
    if qkv.shape[1] != heads.row_width:
        raise ValueError(f"qkv is {tuple(qkv.shape)}, the heads take [T, {heads.row_width}]")
    if qkv.is_cuda:
        from . import triton as on_gpu

        return on_gpu.rotary_kv_write(qkv, cos_sin, batch, kv_pool, layer, heads, norm)
    library = cpu_library(qkv.device)
    if library is None:
        return reference.rotary_kv_write(qkv, cos_sin, batch, kv_pool, layer, heads, norm)
    q = torch.empty(qkv.shape[0], heads.num_heads, heads.head_dim, dtype=torch.float32)
    q_norm, k_norm = (None, None) if norm is None else (pointer(norm.q_weight), pointer(norm.k_weight))
    eps = 0.0 if norm is None else norm.eps
    head_args = HeadsArgs(heads.num_heads, heads.num_kv_heads, heads.head_dim)
    args = RotaryArgs(pointer(qkv), pointer(cos_sin), q_norm, k_norm, pointer(q), head_args, eps)
    kv = KvLayerArgs.of(kv_pool, layer, heads.head_dim)
    library.call("sessile_rotary_kv_write", args, BatchArgs.of(batch), kv)
    return q


def cos_sin_table(inverse_frequencies: Tensor, max_position: int, attention_factor: float = 1.0) -> Tensor:
    """The table [max_position, D] float32 of ``inverse_frequencies`` [D / 2], both parts times ``attention_factor``."""
    angles = torch.outer(torch.arange(max_position, dtype=torch.float64), inverse_frequencies.double())
    return (torch.cat([angles.cos(), angles.sin()], dim=-1) * attention_factor).float()
