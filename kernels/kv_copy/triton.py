"""Copies of KV blocks on a GPU: a block is one run of bytes for all layers, so a list of blocks is one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_WORDS = 4096  # 32-bit words a program copies


@triton.jit
def _copy_runs(
    source_ptr,
    target_ptr,
    source_ids_ptr,
    target_ids_ptr,
    run_words,
    FROM_LIST: tl.constexpr,
    TO_LIST: tl.constexpr,
    WORDS: tl.constexpr,
):
    # source, target [runs, run_words] int32; ids int64, used where FROM_LIST or TO_LIST say so, else run i is run i
    run = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = word < run_words
    source, target = run, run
    if FROM_LIST:
        source = tl.load(source_ids_ptr + run)
    if TO_LIST:
        target = tl.load(target_ids_ptr + run)
    words = tl.load(source_ptr + source * run_words + word, mask=inside)
    tl.store(target_ptr + target * run_words + word, words, mask=inside)


@triton.jit
def _copy_prefix(source_ptr, target_ptr, num_elements, run_elements, ELEMENTS: tl.constexpr):
    # source, target: one block each, [layers * 2 * heads, run_elements]; the first num_elements of each run
    run = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = element < num_elements
    at = run * run_elements + element
    tl.store(target_ptr + at, tl.load(source_ptr + at, mask=inside), mask=inside)


def copy_blocks(kv_pool: Tensor, src: Tensor, dst: Tensor) -> None:
    words = _words(kv_pool)
    _launch(words, words, src, dst, src.numel())


def gather_blocks(kv_pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    """Copies ``blocks`` [n] int64 of the pool to the first n of ``staging`` [>= n, ...], blocks of the same shape."""
    _launch(_words(kv_pool), _words(staging), blocks, None, blocks.numel())


def scatter_blocks(staging: Tensor, kv_pool: Tensor, blocks: Tensor) -> None:
    """Copies the first n blocks of ``staging`` to ``blocks`` [n] int64 of the pool. Mutates the pool."""
    _launch(_words(staging), _words(kv_pool), None, blocks, blocks.numel())


def copy_block_prefix(kv_pool: Tensor, src_block: int, dst_block: int, num_tokens: int, head_dim: int) -> None:
    """As the wrapper, on a pool in plain order, where a prefix of a block is a prefix of each of its runs."""
    if not num_tokens:
        return
    run_elements, num_elements = kv_pool.shape[-1], num_tokens * head_dim
    grid = (kv_pool[0].numel() // run_elements, triton.cdiv(num_elements, 1024))
    _copy_prefix[grid](kv_pool[src_block], kv_pool[dst_block], num_elements, run_elements, ELEMENTS=1024, num_warps=4)


def _words(blocks: Tensor) -> Tensor:
    """``blocks`` [n, ...] as [n, words] int32."""
    return blocks.view(blocks.shape[0], -1).view(torch.int32)


def _launch(source: Tensor, target: Tensor, source_ids: Tensor | None, target_ids: Tensor | None, count: int) -> None:
    if not count:
        return
    if source.shape[1] != target.shape[1]:
        raise ValueError(f"blocks of {source.shape[1] * 4} and {target.shape[1] * 4} bytes are not of one layout")
    run_words = source.shape[1]
    _copy_runs[(count, triton.cdiv(run_words, _WORDS))](
        source,
        target,
        source if source_ids is None else source_ids,
        target if target_ids is None else target_ids,
        run_words,
        FROM_LIST=source_ids is not None,
        TO_LIST=target_ids is not None,
        WORDS=_WORDS,
        num_warps=8,
    )
