"""Attention of runs of new tokens (prompts and their chunks) on a GPU: one program takes a tile of rows."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..attention_batch import AttentionBatch
from ..cuda_config import CudaConfig
from ..tile import locate, narrow
from .attention_shape import TABLES, AttentionShape
from .online_softmax import NOTHING, merge, walk

_SEQUENCES_AT_LEAST = 64  # fewer are not worth a kernel of their own


@triton.jit(do_not_specialize=["num_sequences", "num_tiles", "table_width"], do_not_specialize_on_alignment=TABLES)
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
            highest = tl.full((ROWS,), NOTHING, tl.float32)
            total = tl.zeros((ROWS,), tl.float32)
            for first in tl.range(0, stop, SPLIT_KEYS, num_stages=1):
                part, peak, weight = walk(
                    q, keys_ptr, values_ptr, table_ptr, block_stride, first, seen_by_all,
                    tl.minimum(first + SPLIT_KEYS, stop), positions, scale, ROWS, HEAD_DIM, WIDTH, BLOCK_SIZE, KEYS,
                )  # fmt: skip
                accumulator, highest, total = merge(accumulator, highest, total, part, peak, weight)
        else:
            accumulator, highest, total = walk(
                q, keys_ptr, values_ptr, table_ptr, block_stride, 0, seen_by_all, stop, positions, scale,
                ROWS, HEAD_DIM, WIDTH, BLOCK_SIZE, KEYS,
            )  # fmt: skip
        result = accumulator / tl.maximum(total, 1.0e-30)[:, None]
        tl.store(out_ptr + at, narrow(result, out_ptr.dtype.element_ty), mask=usable)


def run_extend(
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    batch: AttentionBatch,
    shape: AttentionShape,
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


def num_tiles(tokens: int, sequences: int, tokens_a_tile: int) -> int:
    """The most tiles that ``sequences`` runs of together ``tokens`` rows can need."""
    return tokens // tokens_a_tile + min(sequences, tokens)
