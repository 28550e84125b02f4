"""Copies of KV blocks in plain torch. A block is one run of bytes, so this is at memory speed on every device."""

from __future__ import annotations

from torch import Tensor


def copy_blocks(kv_pool: Tensor, src: Tensor, dst: Tensor) -> None:
    for source, destination in zip(src.tolist(), dst.tolist(), strict=True):
        kv_pool[destination].copy_(kv_pool[source])


def gather_blocks(kv_pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    for place, block in enumerate(blocks.tolist()):
        staging[place].copy_(kv_pool[block])


def scatter_blocks(staging: Tensor, kv_pool: Tensor, blocks: Tensor) -> None:
    for place, block in enumerate(blocks.tolist()):
        kv_pool[block].copy_(staging[place])


def copy_block_prefix(kv_pool: Tensor, src_block: int, dst_block: int, num_tokens: int) -> None:
    if num_tokens:
        kv_pool[dst_block].copy_(kv_pool[src_block])
