"""Copies of KV blocks inside the pool: forks, and copy on write inside a block."""

from __future__ import annotations

from torch import Tensor

from . import reference


def copy_blocks(kv_pool: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copies blocks ``src`` [n] int64 to ``dst`` [n] int64, all layers. No block stands in both. Mutates the pool."""
    reference.copy_blocks(kv_pool, src, dst)


def copy_block_prefix(kv_pool: Tensor, src_block: int, dst_block: int, num_tokens: int, head_dim: int) -> None:
    """Copies the KV of the first ``num_tokens`` tokens of one block to another. Mutates the pool.

    What the destination holds after those tokens is not defined: a sequence writes a slot before it reads it.
    """
    block_size = kv_pool.shape[-1] // head_dim
    if not 0 <= num_tokens <= block_size:
        raise ValueError(f"num_tokens must be in 0..{block_size}, not {num_tokens}")
    reference.copy_block_prefix(kv_pool, src_block, dst_block, num_tokens, head_dim)
