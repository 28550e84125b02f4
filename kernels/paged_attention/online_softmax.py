"""What both attention kernels do with a tile of rows: walk its keys with the online softmax of FlashAttention (Dao,
2023, https://arxiv.org/abs/2307.08691), and merge partial results."""

from __future__ import annotations

import triton
import triton.language as tl

from ..tile import dot, narrow

# Of rows that saw no key yet: finite, so that a difference of two is no NaN, and below any score.
NOTHING = tl.constexpr(-1.0e30)


@triton.jit
def attend_tile(
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
def walk(
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
    highest = tl.full((ROWS,), NOTHING, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    whole = tl.maximum(tl.minimum(seen_by_all, stop) - first, 0) // KEYS * KEYS
    for start in range(first, first + whole, KEYS):
        accumulator, highest, total = attend_tile(
            q, accumulator, highest, total, keys_ptr, values_ptr, table_ptr, block_stride, start, stop, positions,
            scale, HEAD_DIM, WIDTH, BLOCK_SIZE, KEYS, False,
        )  # fmt: skip
    for start in range(first + whole, stop, KEYS):
        accumulator, highest, total = attend_tile(
            q, accumulator, highest, total, keys_ptr, values_ptr, table_ptr, block_stride, start, stop, positions,
            scale, HEAD_DIM, WIDTH, BLOCK_SIZE, KEYS, True,
        )  # fmt: skip
    return accumulator, highest, total


@triton.jit
def merge(accumulator, highest, total, other, other_highest, other_total):
    """Two partial results in one. Nothing merged with nothing stays nothing."""
    both = tl.maximum(highest, other_highest)
    mine, others = tl.exp2(highest - both), tl.exp2(other_highest - both)
    accumulator = accumulator * mine[:, None] + other * others[:, None]
    return accumulator, both, total * mine + other_total * others
