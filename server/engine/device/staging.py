"""Staging buffers between a GPU's pool and the tiers: one half of each on the device, one in pinned memory."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from collections.abc import Sequence as Items

import torch
from torch import Tensor

from ....kernels.kv_copy import gather_blocks, scatter_blocks
from ....sessions.cache.host_tier import Slab
from ..kv_cache import KVCache
from .interface import DeviceInterface, Event


class StagingBuffer:
    """Room for ``at_once`` blocks on both sides of the bus. One transfer at a time uses it.

    Blocks are gathered or scattered by one launch, and cross the bus in one copy, on the stream for copies.
    """

    def __init__(self, kv_cache: KVCache, device: DeviceInterface, at_once: int) -> None:
        self._pool = kv_cache.pool
        self._device = device
        self._on_device = torch.empty_like(self._pool[:0]).resize_(at_once, *self._pool.shape[1:])
        self._on_host = device.pinned(at_once * kv_cache.layout.block_bytes)
        self._ids = torch.zeros(at_once, dtype=torch.int64, device=device.torch_device)
        self._host_ids = device.pinned(at_once * torch.int64.itemsize).view(torch.int64)
        self.rows: Slab = self._on_host.numpy().reshape(at_once, -1)  # [at_once, block_bytes]

    def take(self, blocks: Items[int]) -> Event:
        """Copy ``blocks`` to the first ``rows``, after all steps that were launched. They are gathered in the stream of
        the steps, so those launched later may overwrite them at once; only the bus is crossed beside them."""
        self._gather(blocks)
        with self._device.on_copy_stream():
            self._device.copy(self._bytes_on_host(len(blocks)), self._bytes_on_device(len(blocks)))
            return self._device.record()

    def read(self, blocks: Items[int]) -> Event:
        """As ``take``, for blocks that stay as they are: steps do not wait for the gathering either."""
        with self._device.on_copy_stream():
            self._gather(blocks)
            self._device.copy(self._bytes_on_host(len(blocks)), self._bytes_on_device(len(blocks)))
            return self._device.record()

    def put(self, blocks: Items[int]) -> Event:
        """Copy the first ``rows`` to ``blocks``, after all steps that were launched. Steps that read the blocks are
        launched when the event has passed."""
        with self._device.on_copy_stream():
            self._device.copy(self._bytes_on_device(len(blocks)), self._bytes_on_host(len(blocks)))
            ids = self._bring(blocks)
            self._device.put(functools.partial(scatter_blocks, self._on_device, self._pool, ids))
            return self._device.record()

    def _gather(self, blocks: Items[int]) -> None:
        ids = self._bring(blocks)
        self._device.put(functools.partial(gather_blocks, self._pool, ids, self._on_device))

    def _bring(self, blocks: Items[int]) -> Tensor:
        """The block numbers on the device."""
        self._host_ids[: len(blocks)] = torch.tensor(blocks, dtype=torch.int64)
        self._device.copy(self._ids[: len(blocks)], self._host_ids[: len(blocks)])
        return self._ids[: len(blocks)]

    def _bytes_on_device(self, count: int) -> Tensor:
        return self._on_device[:count].view(-1).view(torch.uint8)

    def _bytes_on_host(self, count: int) -> Tensor:
        return self._on_host[: count * self.rows.shape[1]]


class StagingBuffers:
    """Lends buffers to threads: ``least`` are there always."""

    def __init__(self, make: Callable[[], StagingBuffer], least: int) -> None:
        self._make = make
        self._free = [make() for _ in range(least)]
        self._returned = threading.Condition()

    def take(self) -> StagingBuffer:
        """A buffer, once one is free."""
        with self._returned:
            while not self._free:
                self._returned.wait()
            return self._free.pop()

    def take_or_make(self) -> StagingBuffer:
        """A buffer, without waiting: a new one where reads that hang keep all others."""
        with self._returned:
            if self._free:
                return self._free.pop()
        return self._make()

    def give_back(self, buffer: StagingBuffer) -> None:
        """End the use of ``buffer``."""
        with self._returned:
            self._free.append(buffer)
            self._returned.notify()
