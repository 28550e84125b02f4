"""Attention over block tables on a GPU: `decode` splits a context over programs, `extend` gives a tile of rows to each.

Both pack the query heads that share a key head into one tile, and walk the keys with the online softmax of
FlashAttention (Dao, 2023, https://arxiv.org/abs/2307.08691); decode then merges its splits, as in Flash-Decoding.

In deterministic mode both use one tile and start the softmax anew after each `split_keys` keys, merging in order, and
products and sums are not contracted: a row then goes through the same operations in either kernel, whatever else is
in the batch and however it was chunked.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention_batch import AttentionBatch
from ..cuda_config import CudaConfig
from ..tile import dot, locate, narrow

_LOG2_E = 1.4426950408889634
_SPLITS_AT_ONCE = 16  # partial results that one step of the merge reads
_MAX_SPLITS = 128
# A batch's own arrays may start anywhere, and sizes of a step are any: no kernel is compiled anew for them.
_TABLES = ["tables_ptr", "query_start_ptr", "context_lens_ptr"]
_SEQUENCES_AT_LEAST = 64  # fewer are not worth a kernel of their own
# Of rows that saw no key yet: finite, so that a difference of two is no NaN, and below any score.
_NOTHING = tl.constexpr(-1.0e30)


@triton.jit
def _attend_tile(
    q,
    accumulator,
    highest,
    total,
    keys_ptr,
    values_ptr,
    table_ptr,
    block_stride,
    start,
    stop,
    positions,
    scale,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """One step of the online softmax: keys ``start`` to ``start + KEYS``, of which those before ``stop`` exist.

    Without MASKED all keys exist and every row sees them all.
    """
    token = start + tl.arange(0, KEYS)
    dim = tl.arange(0, WIDTH)
    if MASKED:
        exists = token < stop
        block = tl.load(table_ptr + token // BLOCK_SIZE, mask=exists, other=0)
        readable = exists[:, None] & (dim < HEAD_DIM)[None, :]
    else:
        block = tl.load(table_ptr + token // BLOCK_SIZE)
        readable = (dim < HEAD_DIM)[None, :] & (token >= 0)[:, None]
    run = block.to(tl.int64) * block_stride + (token % BLOCK_SIZE) * HEAD_DIM
    at = run[:, None] + dim[None, :]
    if MASKED or WIDTH != HEAD_DIM:
        key = tl.load(keys_ptr + at, mask=readable, other=0.0)  # [KEYS, WIDTH]
        value = tl.load(values_ptr + at, mask=readable, other=0.0)
    else:
        key = tl.load(keys_ptr + at)
        value = tl.load(values_ptr + at)
    scores = dot(q, tl.trans(key), tl.zeros((q.shape[0], KEYS), tl.float32))  # [ROWS, KEYS]
    if MASKED:
        visible = (token[None, :] <= positions[:, None]) & exists[None, :]
        scores = tl.where(visible, scores, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1) * scale)  # scaled to base 2
    faded = tl.exp2(highest - new_highest)
    weights = tl.exp2(scores * scale - new_highest[:, None])
    total = total * faded + tl.sum(weights, 1)
    accumulator = dot(narrow(weights, value.dtype), value, accumulator * faded[:, None])
    return accumulator, new_highest, total


@triton.jit
def _walk(
    q,
    keys_ptr,
    values_ptr,
    table_ptr,
    block_stride,
    first,
    seen_by_all,
    stop,
    positions,
    scale,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Keys ``first`` to ``stop``, in order; every row sees those before ``seen_by_all``.

    Returns the weighted sum of values, not yet divided, the highest score, and the sum of weights.
    """
    accumulator = tl.zeros((ROWS, WIDTH), tl.float32)
    highest = tl.full((ROWS,), _NOTHING, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    whole = tl.maximum(tl.minimum(seen_by_all, stop) - first, 0) // KEYS * KEYS
    for start in range(first, first + whole, KEYS):
        accumulator, highest, total = _attend_tile(
            q, accumulator, highest, total, keys_ptr, values_ptr, table_ptr, block_stride, start, stop, positions,
            scale, HEAD_DIM, WIDTH, BLOCK_SIZE, KEYS, False,
        )  # fmt: skip
    for start in range(first + whole, stop, KEYS):
        accumulator, highest, total = _attend_tile(
            q, accumulator, highest, total, keys_ptr, values_ptr, table_ptr, block_stride, start, stop, positions,
            scale, HEAD_DIM, WIDTH, BLOCK_SIZE, KEYS, True,
        )  # fmt: skip
    return accumulator, highest, total


@triton.jit
def _merge(accumulator, highest, total, other, other_highest, other_total):
    """Two partial results in one. Nothing merged with nothing stays nothing."""
    both = tl.maximum(highest, other_highest)
    mine, others = tl.exp2(highest - both), tl.exp2(other_highest - both)
    accumulator = accumulator * mine[:, None] + other * others[:, None]
    return accumulator, both, total * mine + other_total * others


@triton.jit
def _split_length(context, num_splits, SPLIT_KEYS: tl.constexpr, KEYS: tl.constexpr):
    """Keys of one split: SPLIT_KEYS where fixed (not 0), else a fair share in whole tiles."""
    if SPLIT_KEYS:
        length = SPLIT_KEYS + context * 0
    else:
        length = tl.cdiv(tl.cdiv(context, num_splits), KEYS) * KEYS
    return length


@triton.jit(do_not_specialize=["num_rows", "num_splits", "table_width"], do_not_specialize_on_alignment=_TABLES)
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
        accumulator, highest, total = _walk(
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
        highest = tl.full((1,), _NOTHING, tl.float32)
        total = tl.zeros((1,), tl.float32)
        for start in range(0, used, AT_ONCE):
            split = start + tl.arange(0, AT_ONCE)
            there = split < used
            lines = line + split * step
            peaks = tl.load(partial_stats_ptr + lines * 2, mask=there, other=_NOTHING)
            sums = tl.load(partial_stats_ptr + lines * 2 + 1, mask=there, other=0.0)
            readable = there[:, None] & (dim < HEAD_DIM)[None, :]
            parts = tl.load(partial_ptr + lines[:, None] * HEAD_DIM + dim[None, :], mask=readable, other=0.0)
            peak = tl.max(peaks, 0)
            weights = tl.exp2(peaks - peak)
            accumulator, highest, total = _merge(
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


@triton.jit(do_not_specialize=["num_sequences", "num_tiles", "table_width"], do_not_specialize_on_alignment=_TABLES)
def _extend(
    q_ptr,
    layer_ptr,
    tables_ptr,
    query_start_ptr,
    context_lens_ptr,
    out_ptr,
    num_sequences,
    num_tiles,
    block_stride,
    table_width,
    scale,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SEQUENCES: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT_KEYS: tl.constexpr,
):
    # One tile of rows and one key head a program; shapes as in _decode. The last tiles, with the most keys, go first.
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    TOKENS: tl.constexpr = ROWS // GROUP
    kv_head = tl.program_id(0)
    wanted = num_tiles - 1 - tl.program_id(1)
    sequence, tile = locate(query_start_ptr, num_sequences, TOKENS, wanted, SEQUENCES)
    if sequence < num_sequences:
        context = tl.load(context_lens_ptr + sequence)
        first_row = tl.load(query_start_ptr + sequence)
        query_len = tl.load(query_start_ptr + sequence + 1) - first_row
        row = tl.arange(0, ROWS)
        token = tile * TOKENS + row // GROUP
        head = kv_head * GROUP + row % GROUP
        real = (row // GROUP < TOKENS) & (token < query_len)
        positions = context - query_len + token
        dim = tl.arange(0, WIDTH)
        at = ((first_row + token).to(tl.int64) * NUM_HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
        usable = real[:, None] & (dim < HEAD_DIM)[None, :]
        q = narrow(tl.load(q_ptr + at, mask=usable, other=0.0), layer_ptr.dtype.element_ty)
        keys_ptr = layer_ptr + kv_head * (BLOCK_SIZE * HEAD_DIM)
        values_ptr = keys_ptr + NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM
        table_ptr = tables_ptr + sequence.to(tl.int64) * table_width
        seen_by_all = context - query_len + tile * TOKENS + 1
        stop = tl.minimum(context, context - query_len + (tile + 1) * TOKENS)
        if SPLIT_KEYS:
            accumulator = tl.zeros((ROWS, WIDTH), tl.float32)
            highest = tl.full((ROWS,), _NOTHING, tl.float32)
            total = tl.zeros((ROWS,), tl.float32)
            for first in tl.range(0, stop, SPLIT_KEYS, num_stages=1):
                part, peak, weight = _walk(
                    q, keys_ptr, values_ptr, table_ptr, block_stride, first, seen_by_all,
                    tl.minimum(first + SPLIT_KEYS, stop), positions, scale, ROWS, HEAD_DIM, WIDTH, BLOCK_SIZE, KEYS,
                )  # fmt: skip
                accumulator, highest, total = _merge(accumulator, highest, total, part, peak, weight)
        else:
            accumulator, highest, total = _walk(
                q, keys_ptr, values_ptr, table_ptr, block_stride, 0, seen_by_all, stop, positions, scale,
                ROWS, HEAD_DIM, WIDTH, BLOCK_SIZE, KEYS,
            )  # fmt: skip
        result = accumulator / tl.maximum(total, 1.0e-30)[:, None]
        tl.store(out_ptr + at, narrow(result, out_ptr.dtype.element_ty), mask=usable)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What both kernels need to know of one call."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    scale: float

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    def constants(self) -> dict[str, int]:
        return {
            "NUM_HEADS": self.num_heads,
            "NUM_KV_HEADS": self.num_kv_heads,
            "HEAD_DIM": self.head_dim,
            "WIDTH": max(16, triton.next_power_of_2(self.head_dim)),
            "BLOCK_SIZE": self.block_size,
        }


def paged_attention(
    q: Tensor, kv_pool: Tensor, layer: int, batch: AttentionBatch, scale: float, config: CudaConfig
) -> Tensor:
    """As the wrapper, on a pool in plain order. Sequences that the batch calls short are decoded, others extended."""
    tokens, num_heads, head_dim = q.shape
    shape = _Shape(num_heads, kv_pool.shape[3], head_dim, kv_pool.shape[-1] // head_dim, scale * _LOG2_E)
    out = torch.empty(tokens, num_heads * head_dim, dtype=q.dtype, device=q.device)
    if not tokens:
        return out
    q = q.contiguous()
    short, rows_each = batch.num_short, batch.max_short_len
    if tokens == batch.num_sequences and not short:
        short, rows_each = batch.num_sequences, 1
    if short:
        _run_decode(q, kv_pool, layer, batch, shape, out, config, short, rows_each)
    if short < batch.num_sequences:
        _run_extend(q, kv_pool, layer, batch, shape, out, config, short)
    return out


def _run_decode(
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    batch: AttentionBatch,
    shape: _Shape,
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


def _run_extend(
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    batch: AttentionBatch,
    shape: _Shape,
    out: Tensor,
    config: CudaConfig,
    first_sequence: int,
) -> None:
    tile = config.extend.fitted(shape.head_dim, kv_pool.element_size())
    rows = max(tile.rows, triton.next_power_of_2(shape.group))
    sequences = batch.num_sequences - first_sequence
    tiles = num_tiles(q.shape[0] - first_sequence, sequences, rows // shape.group)
    query_start, context_lens = batch.query_start[first_sequence:], batch.context_lens[first_sequence:]
    tables = batch.block_tables[first_sequence:]
    _extend[(shape.num_kv_heads, tiles)](
        q,
        kv_pool[0, layer],
        tables,
        query_start,
        context_lens,
        out,
        sequences,
        tiles,
        kv_pool.stride(0),
        tables.stride(0),
        shape.scale,
        **shape.constants(),
        SEQUENCES=max(_SEQUENCES_AT_LEAST, triton.next_power_of_2(sequences)),
        ROWS=rows,
        KEYS=tile.keys,
        SPLIT_KEYS=config.split_keys if config.is_deterministic else 0,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
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


def num_tiles(tokens: int, sequences: int, tokens_a_tile: int) -> int:
    """The most tiles that ``sequences`` runs of together ``tokens`` rows can need."""
    return tokens // tokens_a_tile + min(sequences, tokens)
