"""Rotary embedding and the write of keys and values on a GPU: one read of qkv, one write of q and of the pool."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention_batch import AttentionBatch
from ..tile import narrow
from .heads import Heads, QKNorm

_HEADS = 16  # heads a program


@triton.jit
def _rotary_kv_write(
    qkv_ptr,
    cos_sin_ptr,
    positions_ptr,
    slots_ptr,
    q_weight_ptr,
    k_weight_ptr,
    q_ptr,
    layer_ptr,
    block_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    # qkv [T, (Hq + 2 Hkv) * D], cos_sin [max_position, D] float32, q [T, Hq, D]
    # layer: the pool at this layer of block 0, [blocks, 2, Hkv, block_size, D]; a slot below 0 is not written
    HALF: tl.constexpr = HEAD_DIM // 2
    ALL_HEADS: tl.constexpr = NUM_HEADS + 2 * NUM_KV_HEADS
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dim = tl.arange(0, WIDTH)
    inside = (head < ALL_HEADS)[:, None] & (dim < HALF)[None, :]
    at = qkv_ptr + (token * ALL_HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)  # [HEADS, WIDTH]
    second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    is_value = (head >= NUM_HEADS + NUM_KV_HEADS)[:, None]
    is_query = (head < NUM_HEADS)[:, None]
    plain_first, plain_second = first, second
    if HAS_NORM:
        scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / HEAD_DIM + eps)[:, None]
        near, far = dim < HALF, dim + HALF
        q_near = tl.load(q_weight_ptr + dim, mask=near, other=0.0)[None, :]
        q_far = tl.load(q_weight_ptr + far, mask=near, other=0.0)[None, :]
        k_near = tl.load(k_weight_ptr + dim, mask=near, other=0.0)[None, :]
        k_far = tl.load(k_weight_ptr + far, mask=near, other=0.0)[None, :]
        first = first * scale * tl.where(is_query, q_near, k_near)
        second = second * scale * tl.where(is_query, q_far, k_far)
    position = tl.load(positions_ptr + token).to(tl.int64)
    cos = tl.load(cos_sin_ptr + position * HEAD_DIM + dim, mask=dim < HALF, other=0.0)[None, :]
    sin = tl.load(cos_sin_ptr + position * HEAD_DIM + HALF + dim, mask=dim < HALF, other=0.0)[None, :]
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin

    to_q = q_ptr + (token * NUM_HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
    tl.store(to_q, narrow(turned_first, q_ptr.dtype.element_ty), mask=inside & is_query)
    tl.store(to_q + HALF, narrow(turned_second, q_ptr.dtype.element_ty), mask=inside & is_query)

    slot = tl.load(slots_ptr + token)
    kv_head = head - NUM_HEADS  # keys, then values: [2, Hkv] of the pool is one run of heads
    run = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * HEAD_DIM
    to_pool = layer_ptr + run + kv_head.to(tl.int64)[:, None] * (BLOCK_SIZE * HEAD_DIM) + dim[None, :]
    written = inside & (head >= NUM_HEADS)[:, None] & (slot >= 0)
    kv_type = layer_ptr.dtype.element_ty
    tl.store(to_pool, narrow(tl.where(is_value, plain_first, turned_first), kv_type), mask=written)
    tl.store(to_pool + HALF, narrow(tl.where(is_value, plain_second, turned_second), kv_type), mask=written)


def rotary_kv_write(
    qkv: Tensor, cos_sin: Tensor, batch: AttentionBatch, kv_pool: Tensor, layer: int, heads: Heads, norm: QKNorm | None
) -> Tensor:
    """As the wrapper, on a pool in plain order. A token whose slot is negative writes nothing."""
    tokens = qkv.shape[0]
    q = torch.empty(tokens, heads.num_heads, heads.head_dim, dtype=qkv.dtype, device=qkv.device)
    if not tokens:
        return q
    grid = (tokens, triton.cdiv(heads.num_heads + 2 * heads.num_kv_heads, _HEADS))
    _rotary_kv_write[grid](
        qkv.contiguous(),
        cos_sin,
        batch.positions,
        batch.slot_mapping,
        cos_sin if norm is None else norm.q_weight,
        cos_sin if norm is None else norm.k_weight,
        q,
        kv_pool[0, layer],
        kv_pool.stride(0),
        0.0 if norm is None else norm.eps,
        NUM_HEADS=heads.num_heads,
        NUM_KV_HEADS=heads.num_kv_heads,
        HEAD_DIM=heads.head_dim,
        BLOCK_SIZE=kv_pool.shape[-1] // heads.head_dim,
        HAS_NORM=norm is not None,
        HEADS=_HEADS,
        WIDTH=triton.next_power_of_2(heads.head_dim // 2),
        num_warps=4,
    )
    return q
