"""Rotary embedding and the write of keys and values, in plain torch, float32."""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention_batch import AttentionBatch
from ..kv_layout import GROUP, keys_view, pair_of, values_view
from ..rms_norm.reference import rms_norm
from .heads import Heads, QKNorm


def rotary_kv_write(
    qkv: Tensor, cos_sin: Tensor, batch: AttentionBatch, kv_pool: Tensor, layer: int, heads: Heads, norm: QKNorm | None
) -> Tensor:
    rows = qkv.float().view(-1, heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim)
    q, k, v = torch.split(rows, [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads], dim=1)
    if norm is not None:
        q, k = rms_norm(q, norm.q_weight, norm.eps), rms_norm(k, norm.k_weight, norm.eps)
    angles = cos_sin[batch.positions.long()]
    q, k = _rotate(q, angles), _rotate(k, angles)
    _write(k, v, batch.slot_mapping, kv_pool, layer, heads.head_dim)
    return q


def _rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotates the pairs (i, i + head_dim / 2) of ``x`` [T, heads, head_dim]."""
    cos, sin = angles.unsqueeze(1).chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _write(k: Tensor, v: Tensor, slots: Tensor, kv_pool: Tensor, layer: int, head_dim: int) -> None:
    p = pair_of(kv_pool.dtype)
    block_size = kv_pool.shape[-1] // head_dim
    block, offset = slots // block_size, slots % block_size
    group, token = offset // GROUP, offset % GROUP
    k, v = k.to(kv_pool.dtype), v.to(kv_pool.dtype)
    keys_view(kv_pool, layer, head_dim)[block, :, group, token] = k.view(*k.shape[:2], -1, p)
    values_view(kv_pool, layer, head_dim)[block, :, group, token // p, token % p] = v
