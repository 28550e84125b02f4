"""Blocks on their way to the disk: copied into memory of a fixed size, readable until they are written."""

from __future__ import annotations

import threading

import numpy as np

from ..block_pool import BlockPool
from ..host_tier import allocate_slab
from ..tiers import Block


class WriteQueue:
    """Bounded and in order. Offering never waits; one thread takes. Safe from any thread."""

    def __init__(self, capacity_bytes: int, block_bytes: int) -> None:
        self._slab = allocate_slab(capacity_bytes, block_bytes)
        self._pool = BlockPool(self._slab.shape[0])
        self._waiting: dict[bytes, int] = {}  # key -> slot of the slab, in order
        self._taken: dict[bytes, int] = {}  # handed to the writer, not finished
        self._cancelled: set[bytes] = set()  # of those taken
        self._changed = threading.Condition()
        self._closed = False

    def __contains__(self, key: bytes) -> bool:
        return key in self._waiting or (key in self._taken and key not in self._cancelled)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._taken)

    def offer(self, key: bytes, block: Block) -> bool:
        """Copy ``block`` into the queue; False if it is full or closed."""
        with self._changed:
            if key in self:
                return True
            if self._closed or self._pool.num_free == 0:
                return False
            slot = self._pool.allocate(1)[0]
        np.copyto(self._slab[slot], block)
        with self._changed:
            if key in self or self._closed:
                self._pool.release([slot])
            else:
                self._waiting[key] = slot
                self._changed.notify_all()
        return True

    def copy_to(self, key: bytes, block: Block) -> bool:
        """Fill ``block`` with what was offered under ``key``; False if it is not here (any more)."""
        with self._changed:
            if key not in self:
                return False
            slot = self._waiting[key] if key in self._waiting else self._taken[key]
            self._pool.retain([slot])
        np.copyto(block, self._slab[slot])
        with self._changed:
            self._pool.release([slot])
        return True

    def take(self, most: int, timeout_s: float) -> list[tuple[bytes, Block]]:
        """The oldest blocks, at most ``most``, each to be given to ``finish``. Waits for one until the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed, timeout_s)
            keys = list(self._waiting)[:most]
            for key in keys:
                self._taken[key] = self._waiting.pop(key)
            return [(key, self._slab[self._taken[key]]) for key in keys]

    def still_wanted(self, key: bytes) -> bool:
        """Whether a block that was taken was not cancelled since."""
        return key not in self._cancelled

    def finish(self, keys: list[bytes]) -> None:
        """The taken ``keys`` are written, or never will be."""
        with self._changed:
            self._pool.release([self._taken.pop(key) for key in keys])
            self._cancelled.difference_update(keys)
            self._changed.notify_all()

    def cancel(self, key: bytes) -> None:
        """Forget ``key`` if it is still here."""
        with self._changed:
            if key in self._taken:
                self._cancelled.add(key)
            slot = self._waiting.pop(key, None)
            if slot is not None:
                self._pool.release([slot])
                self._changed.notify_all()

    def wait_until_empty(self, timeout_s: float | None = None) -> bool:
        """Return when all that was offered is finished; False if that takes longer. Needs a thread that takes."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._taken, timeout_s)

    def close(self) -> None:
        """Accept nothing more and let ``take`` return."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Forget all that is here and accept nothing more: the writer is gone."""
        with self._changed:
            self._closed = True
            self._pool.release([*self._waiting.values(), *self._taken.values()])
            self._waiting.clear()
            self._taken.clear()
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._closed
