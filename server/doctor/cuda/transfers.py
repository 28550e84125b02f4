"""Blocks on their way out of a GPU's pool and into it, beside steps that overwrite them: do the streams keep order?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from ....sessions.cache.tiers import Block
from ...engine.device.interface import DeviceInterface
from ...engine.device.staged_blocks import StagedBlocks
from ...engine.kv_cache import KVCache
from ...engine.pool_blocks import write_blocks
from .results import Correctness

_LEAVING = 20  # blocks, in pieces of _AT_ONCE
_AT_ONCE = 8


def check_transfers(device: DeviceInterface, kv_cache: KVCache) -> Iterator[Correctness]:
    """Of a pool of random KV with ``2 * _LEAVING`` blocks or more, which are overwritten."""
    staged = StagedBlocks(kv_cache, device, _AT_ONCE * kv_cache.layout.block_bytes)
    order = torch.randperm(kv_cache.num_blocks).tolist()
    leaving, others = order[:_LEAVING], order[_LEAVING : 2 * _LEAVING]
    wanted = kv_cache.pool[leaving].view(_LEAVING, -1).view(torch.uint8).cpu().numpy()
    found = np.zeros_like(wanted)

    def use(start: int, blocks: list[Block]) -> None:
        found[start : start + len(blocks)] = blocks

    staged.copy_out(leaving, use)
    overwritten = torch.tensor(leaving, device=kv_cache.pool.device)
    device.put(lambda: kv_cache.pool.index_fill_(0, overwritten, 0.5))  # as a later step does
    staged.settle()
    yield Correctness("kv_copy", "out, overwritten at once", float(np.count_nonzero(found != wanted)), 0.0)
    device.put(lambda: kv_cache.pool.index_fill_(0, torch.tensor(others, device=kv_cache.pool.device), 0.5))
    write_blocks(staged, others, list(wanted))
    back = np.concatenate([np.stack(piece) for piece in _copies(staged, others)])
    yield Correctness("kv_copy", "in, behind a step, and read", float(np.count_nonzero(back != wanted)), 0.0)
    staged.close()


def _copies(staged: StagedBlocks, blocks: list[int]) -> Iterator[list[Block]]:
    for piece in staged.read(blocks):
        yield [block.copy() for block in piece]
