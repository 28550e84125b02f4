"""Attention of short runs of new tokens (decodes, drafts) on a GPU: one program takes all rows of a sequence and key
head, or of a part of its context; the parts are merged then, as in Flash-Decoding."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention_batch import AttentionBatch
from ..cuda_config import CudaConfig
from ..tile import narrow
from .attention_shape import TABLES, AttentionShape
from .online_softmax import NOTHING, merge, walk

_SPLITS_AT_ONCE = 16  # partial results that one step of the merge reads
_MAX_SPLITS = 128


@triton.jit
def _split_length(context, num_splits, SPLIT_KEYS: tl.constexpr, KEYS: tl.constexpr):
    """Keys of one split: SPLIT_KEYS where fixed (not 0), else a fair share in whole tiles."""
    if SPLIT_KEYS:
        length = SPLIT_KEYS + context * 0
    else:
        length = tl.cdiv(tl.cdiv(context, num_splits), KEYS) * KEYS
    return length


@triton.jit(do_not_specialize=["num_rows", "num_splits", "table_width"], do_not_specialize_on_alignment=TABLES)
def _decode(
    q_ptr,
    layer_ptr,
    tables_ptr,
    query_start_ptr,
    context_lens_ptr,
    out_ptr,
    partial_ptr,
    partial_stats_ptr,
    num_rows,
    num_splits,
    block_stride,
    table_width,
    scale,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    SPLIT_KEYS: tl.constexpr,
):
    # q [T, Hq, D]; layer: the pool at this layer of block 0, [blocks, 2, Hkv, block_size, D]; out [T, Hq, D]
    # partial [splits, T, Hq, D] float32, partial_stats [splits, T, Hq, 2] float32: highest score, sum of weights
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    kv_head = tl.program_id(0)
    sequence = tl.program_id(1)
    split = tl.program_id(2)
    context = tl.load(context_lens_ptr + sequence)
    first_row = tl.load(query_start_ptr + sequence)
    query_len = tl.load(query_start_ptr + sequence + 1) - first_row
    row = tl.arange(0, ROWS)
    token = row // GROUP  # of the sequence's new ones
    head = kv_head * GROUP + row % GROUP
    real = token < query_len
    positions = context - query_len + token
    dim = tl.arange(0, WIDTH)
    at = ((first_row + token).to(tl.int64) * NUM_HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
    usable = real[:, None] & (dim < HEAD_DIM)[None, :]
    length = _split_length(context, num_splits, SPLIT_KEYS, KEYS)
    first = split * length
    if first < context or split == 0:
        q = narrow(tl.load(q_ptr + at, mask=usable, other=0.0), layer_ptr.dtype.element_ty)
        keys_ptr = layer_ptr + kv_head * (BLOCK_SIZE * HEAD_DIM)
        values_ptr = keys_ptr + NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM
        accumulator, highest, total = walk(
            q,
            keys_ptr,
            values_ptr,
            tables_ptr + sequence.to(tl.int64) * table_width,
            block_stride,
            first,
            context - query_len + 1,
            tl.minimum(first + length, context),
            positions,
            scale,
            ROWS,
            HEAD_DIM,
            WIDTH,
            BLOCK_SIZE,
            KEYS,
        )
        if IS_SPLIT:
            here = split.to(tl.int64) * num_rows * NUM_HEADS
            tl.store(partial_ptr + here * HEAD_DIM + at, accumulator, mask=usable)
            stats = partial_stats_ptr + (here + (first_row + token) * NUM_HEADS + head) * 2
            tl.store(stats, highest, mask=real)
            tl.store(stats + 1, total, mask=real)
        else:
            result = accumulator / tl.maximum(total, 1.0e-30)[:, None]
            tl.store(out_ptr + at, narrow(result, out_ptr.dtype.element_ty), mask=usable)


@triton.jit(
    do_not_specialize=["num_rows", "num_splits"],
    do_not_specialize_on_alignment=["query_start_ptr", "context_lens_ptr"],
)
def _merge_splits(
    partial_ptr,
    partial_stats_ptr,
    query_start_ptr,
    context_lens_ptr,
    out_ptr,
    num_rows,
    num_splits,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT_KEYS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    # One row and head a program. partial [splits, T, Hq, D], partial_stats [splits, T, Hq, 2], out [T, Hq, D]
    head = tl.program_id(0)
    sequence = tl.program_id(1)
    first_row = tl.load(query_start_ptr + sequence)
    query_len = tl.load(query_start_ptr + sequence + 1) - first_row
    context = tl.load(context_lens_ptr + sequence)
    length = _split_length(context, num_splits, SPLIT_KEYS, KEYS)
    used = tl.maximum(tl.cdiv(context, tl.maximum(length, 1)), 1)
    dim = tl.arange(0, WIDTH)
    if tl.program_id(2) < query_len:
        line = (first_row + tl.program_id(2)).to(tl.int64) * NUM_HEADS + head
        step = num_rows.to(tl.int64) * NUM_HEADS
        accumulator = tl.zeros((1, WIDTH), tl.float32)
        highest = tl.full((1,), NOTHING, tl.float32)
        total = tl.zeros((1,), tl.float32)
        for start in range(0, used, AT_ONCE):
            split = start + tl.arange(0, AT_ONCE)
            there = split < used
            lines = line + split * step
            peaks = tl.load(partial_stats_ptr + lines * 2, mask=there, other=NOTHING)
            sums = tl.load(partial_stats_ptr + lines * 2 + 1, mask=there, other=0.0)
            readable = there[:, None] & (dim < HEAD_DIM)[None, :]
            parts = tl.load(partial_ptr + lines[:, None] * HEAD_DIM + dim[None, :], mask=readable, other=0.0)
            peak = tl.max(peaks, 0)
            weights = tl.exp2(peaks - peak)
            accumulator, highest, total = merge(
                accumulator,
                highest,
                total,
                tl.sum(parts * weights[:, None], 0)[None, :],
                peak + tl.zeros((1,), tl.float32),
                tl.sum(sums * weights, 0) + tl.zeros((1,), tl.float32),
            )
        result = accumulator / tl.maximum(total, 1.0e-30)[:, None]
        to = out_ptr + line * HEAD_DIM + dim[None, :]
        tl.store(to, narrow(result, out_ptr.dtype.element_ty), mask=(dim < HEAD_DIM)[None, :])


def run_decode(
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    batch: AttentionBatch,
    shape: AttentionShape,
    out: Tensor,
    config: CudaConfig,
    sequences: int,
    rows_each: int,
) -> None:
    tokens = q.shape[0]
    tile = config.decode.fitted(shape.head_dim, kv_pool.element_size())
    rows = max(tile.rows, 16, triton.next_power_of_2(rows_each * shape.group))
    max_context = batch.block_tables.shape[1] * shape.block_size
    splits = num_splits(config, sequences * shape.num_kv_heads, max_context, tile.keys)
    split_keys = config.split_keys if config.is_deterministic else 0
    partial = torch.empty(
        splits if splits > 1 else 0, tokens, shape.num_heads, shape.head_dim, dtype=torch.float32, device=q.device
    )
    stats = torch.empty(*partial.shape[:3], 2, dtype=torch.float32, device=q.device)
    _decode[(shape.num_kv_heads, sequences, splits)](
        q,
        kv_pool[0, layer],
        batch.block_tables,
        batch.query_start,
        batch.context_lens,
        out,
        partial if splits > 1 else out,
        stats if splits > 1 else out,
        tokens,
        splits,
        kv_pool.stride(0),
        batch.block_tables.stride(0),
        shape.scale,
        **shape.constants(),
        ROWS=rows,
        KEYS=tile.keys,
        IS_SPLIT=splits > 1,
        SPLIT_KEYS=split_keys,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=not config.is_deterministic,
    )
    if splits > 1:
        constants = shape.constants()
        _merge_splits[(shape.num_heads, sequences, rows_each)](
            partial,
            stats,
            batch.query_start,
            batch.context_lens,
            out,
            tokens,
            splits,
            NUM_HEADS=shape.num_heads,
            HEAD_DIM=shape.head_dim,
            WIDTH=constants["WIDTH"],
            KEYS=tile.keys,
            SPLIT_KEYS=split_keys,
            AT_ONCE=1 if config.is_deterministic else _SPLITS_AT_ONCE,
            num_warps=1,
            enable_fp_fusion=not config.is_deterministic,
        )


def num_splits(config: CudaConfig, programs: int, max_context: int, keys: int) -> int:
    """In how many parts decode cuts a context of up to ``max_context`` tokens, with ``programs`` for one part.

    Fast: so that about four programs fall to each processor, and no part is empty. Deterministic: as many fixed
    parts as the longest context has. Known without looking at the device, so that a graph can be captured.
    """
    if config.is_deterministic:
        return max(1, -(-max_context // config.split_keys))
    wanted = -(-4 * config.num_processors // programs)
    return max(1, min(wanted, _MAX_SPLITS, -(-max_context // (2 * keys))))
