"""The blocks of a GPU's pool, as the host reads and writes them: through staging buffers, beside the steps."""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass

from ....sessions.cache.tiers import Block
from ..kv_cache import KVCache
from ..pool_blocks import Landing
from .interface import DeviceInterface, Event
from .staging import StagingBuffer, StagingBuffers

logger = logging.getLogger(__name__)

STAGING_BYTES = 32 * 2**20  # of a buffer
_OUT, _IN = 2, 3  # buffers: for blocks that leave; for two threads that load and one that reads or writes files
ALL_STAGING_BYTES = (_OUT + _IN) * STAGING_BYTES  # on the device, for the memory plan


@dataclass(frozen=True, slots=True)
class _Leaving:
    """Blocks on their way out."""

    buffer: StagingBuffer
    count: int
    arrived: Event
    use: Callable[[list[Block]], None]


@dataclass(frozen=True, slots=True)
class _Staged:
    buffer: StagingBuffer
    blocks: Items[int]

    @property
    def buffers(self) -> Items[Block]:
        return list(self.buffer.rows[: len(self.blocks)])

    def land(self, count: int) -> None:
        if count:
            self.buffer.put(self.blocks[:count]).wait()


class StagedBlocks:
    """See ``PoolBlocks``. Blocks that leave go through two buffers in turns: one is filled while the other is stored
    by a thread of its own. Who finds both on their way waits, no longer than tiers take to copy what one holds."""

    def __init__(self, kv_cache: KVCache, device: DeviceInterface, staging_bytes: int = STAGING_BYTES) -> None:
        self.block_bytes = kv_cache.layout.block_bytes
        self.at_once = max(1, min(staging_bytes // self.block_bytes, kv_cache.num_blocks))

        def make() -> StagingBuffer:
            return StagingBuffer(kv_cache, device, self.at_once)

        self._out, self._in = StagingBuffers(make, _OUT), StagingBuffers(make, _IN)
        self._leaving: queue.SimpleQueue[_Leaving | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._let_leave, name="kv-out", daemon=True)
        self._thread.start()

    def copy_out(self, blocks: Items[int], use: Callable[[int, list[Block]], None]) -> None:
        """See ``PoolBlocks``."""
        for start in range(0, len(blocks), self.at_once):
            piece = blocks[start : start + self.at_once]
            buffer = self._out.take()
            arrived = buffer.take(piece)
            self._leaving.put(_Leaving(buffer, len(piece), arrived, functools.partial(use, start)))

    def read(self, blocks: Items[int]) -> Iterator[list[Block]]:
        """See ``PoolBlocks``."""
        buffer = self._in.take_or_make()
        try:
            for start in range(0, len(blocks), self.at_once):
                piece = blocks[start : start + self.at_once]
                buffer.read(piece).wait()
                yield list(buffer.rows[: len(piece)])
        finally:
            self._in.give_back(buffer)

    @contextmanager
    def landing(self, blocks: Items[int]) -> Iterator[Landing]:
        """See ``PoolBlocks``."""
        assert len(blocks) <= self.at_once
        buffer = self._in.take_or_make()
        try:
            yield _Staged(buffer, blocks)
        finally:
            self._in.give_back(buffer)

    def settle(self) -> None:
        """Wait until what ``copy_out`` began is over."""
        for buffer in [self._out.take() for _ in range(_OUT)]:
            self._out.give_back(buffer)

    def close(self) -> None:
        """See ``PoolBlocks``."""
        self._leaving.put(None)
        self._thread.join()

    def _let_leave(self) -> None:
        while (leaving := self._leaving.get()) is not None:
            try:
                leaving.arrived.wait()
                leaving.use(list(leaving.buffer.rows[: leaving.count]))
            except Exception:  # a tier that breaks its promise not to raise; whoever needs the buffer must not wait
                logger.exception("blocks that left the pool could not be stored")
            finally:
                self._out.give_back(leaving.buffer)
