"""Copies of KV blocks: inside the pool (forks, copy on write), and between it and staging buffers (tiers)."""

from __future__ import annotations

from torch import Tensor

from . import reference


def copy_blocks(kv_pool: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copies blocks ``src`` [n] int64 to ``dst`` [n] int64, all layers. No block stands in both. Mutates the pool."""
    if kv_pool.is_cuda:
        from . import triton as on_gpu

        return on_gpu.copy_blocks(kv_pool, src, dst)
    return reference.copy_blocks(kv_pool, src, dst)


def copy_block_prefix(kv_pool: Tensor, src_block: int, dst_block: int, num_tokens: int, head_dim: int) -> None:
    """Copies the KV of the first ``num_tokens`` tokens of one block to another. Mutates the pool.

    What the destination holds after those tokens is not defined: a sequence writes a slot before it reads it. (On a
    CPU the whole block is copied: one run of bytes, where a prefix would be hundreds of small pieces.)
    """
    block_size = kv_pool.shape[-1] // head_dim
    if not 0 <= num_tokens <= block_size:
        raise ValueError(f"num_tokens must be in 0..{block_size}, not {num_tokens}")
    if kv_pool.is_cuda:
        from . import triton as on_gpu

        return on_gpu.copy_block_prefix(kv_pool, src_block, dst_block, num_tokens, head_dim)
    return reference.copy_block_prefix(kv_pool, src_block, dst_block, num_tokens)


def gather_blocks(kv_pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    """Copies ``blocks`` [n] int64 of the pool to the first n blocks of ``staging``, which is shaped as the pool."""
    if kv_pool.is_cuda:
        from . import triton as on_gpu

        return on_gpu.gather_blocks(kv_pool, blocks, staging)
    return reference.gather_blocks(kv_pool, blocks, staging)


def scatter_blocks(staging: Tensor, kv_pool: Tensor, blocks: Tensor) -> None:
    """Copies the first n blocks of ``staging`` to ``blocks`` [n] int64 of the pool, which are all different."""
    if kv_pool.is_cuda:
        from . import triton as on_gpu

        return on_gpu.scatter_blocks(staging, kv_pool, blocks)
    return reference.scatter_blocks(staging, kv_pool, blocks)
