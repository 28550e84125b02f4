"""Copies of KV blocks in plain torch."""

from __future__ import annotations

from torch import Tensor

from ..kv_layout import keys_view, values_view


def copy_blocks(kv_pool: Tensor, src: Tensor, dst: Tensor) -> None:
    kv_pool[dst] = kv_pool[src]


def gather_blocks(kv_pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    staging[: blocks.numel()] = kv_pool[blocks]


def scatter_blocks(staging: Tensor, kv_pool: Tensor, blocks: Tensor) -> None:
    kv_pool[blocks] = staging[: blocks.numel()]


def copy_block_prefix(kv_pool: Tensor, src_block: int, dst_block: int, num_tokens: int, head_dim: int) -> None:
    for layer in range(kv_pool.shape[1]):
        keys, values = keys_view(kv_pool, layer, head_dim), values_view(kv_pool, layer, head_dim)
        full, rest = divmod(num_tokens, keys.shape[3])
        keys[dst_block, :, :full] = keys[src_block, :, :full]
        values[dst_block, :, :full] = values[src_block, :, :full]
        if rest:
            keys[dst_block, :, full, :rest] = keys[src_block, :, full, :rest]
            for token in range(rest):
                at = (slice(None), full, *divmod(token, values.shape[4]))
                values[(dst_block, *at)] = values[(src_block, *at)]
