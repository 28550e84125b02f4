"""Rotary position embedding (Su et al., 2021, https://arxiv.org/abs/2104.09864), fused with the write of the KV."""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention_batch import AttentionBatch
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
    return reference.rotary_kv_write(qkv, cos_sin, batch, kv_pool, layer, heads, norm)


def cos_sin_table(inverse_frequencies: Tensor, max_position: int, attention_factor: float = 1.0) -> Tensor:
    """The table [max_position, D] float32 of ``inverse_frequencies`` [D / 2], both parts times ``attention_factor``."""
    angles = torch.outer(torch.arange(max_position, dtype=torch.float64), inverse_frequencies.double())
    return (torch.cat([angles.cos(), angles.sin()], dim=-1) * attention_factor).float()
