"""Copies of KV blocks between the pool and pinned host memory, beside the steps.

Blocks are gathered into a staging buffer on the device by one launch and cross the bus in one copy, on a stream of
their own; two staging buffers take turns, so that one is filled while the other is on its way.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from ....kernels.kv_copy import gather_blocks, scatter_blocks
from ..kv_cache import KVCache
from .interface import DeviceInterface, Event

STAGING_BYTES = 64 * 2**20


class BlockMover:
    """Alone uses the staging buffers. Callers keep blocks and host memory as they are until the event has passed."""

    def __init__(self, kv_cache: KVCache, device: DeviceInterface, staging_bytes: int = STAGING_BYTES) -> None:
        self._pool = kv_cache.pool
        self._device = device
        self._at_once = max(1, staging_bytes // kv_cache.layout.block_bytes)
        self._staging = [torch.empty_like(self._pool[:0]).resize_(self._at_once, *self._pool.shape[1:]) for _ in "ab"]

    def to_host(self, blocks: Sequence[int], host: Tensor) -> Event:
        """Copy ``blocks`` to ``host`` [len(blocks), ...], pinned, shaped as blocks of the pool, after all steps that
        were launched. Steps go on meanwhile; the blocks must not be written before the event."""
        with self._device.on_copy_stream():
            for start, ids, staging in self._pieces(blocks):
                self._device.put(functools.partial(gather_blocks, self._pool, ids, staging))
                self._device.copy(host[start : start + len(ids)], staging[: len(ids)])
            return self._device.record()

    def to_device(self, host: Tensor, blocks: Sequence[int]) -> Event:
        """Copy ``host`` [len(blocks), ...], pinned, to ``blocks``. Steps that read them are launched after
        ``wait_for_copies`` of the device."""
        with self._device.on_copy_stream():
            for start, ids, staging in self._pieces(blocks):
                self._device.copy(staging[: len(ids)], host[start : start + len(ids)])
                self._device.put(functools.partial(scatter_blocks, staging, self._pool, ids))
            return self._device.record()

    def _pieces(self, blocks: Sequence[int]) -> list[tuple[int, Tensor, Tensor]]:
        """First index, block ids and the staging buffer of each piece."""
        ids = torch.tensor(blocks, dtype=torch.int64).to(self._pool.device)
        starts = range(0, len(blocks), self._at_once)
        return [
            (start, ids[start : start + self._at_once], self._staging[number % len(self._staging)])
            for number, start in enumerate(starts)
        ]
