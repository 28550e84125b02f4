"""Memory through which objects go to and from a shared store, and the slots of it that nobody may touch."""

from __future__ import annotations

from .block_pool import BlockPool
from .host_tier import Slab, allocate_slab
from .object_trailer import TRAILER_BYTES, is_sealed, seal
from .tiers import Block, Entry


class Staging:
    """Alone owns the slots. Each holds an object: ``blocks_per_entry`` blocks and the trailer.

    Half of the slots are for stores at most, so that loads always have some. Not safe for threads: the shared tier
    calls it under its lock, except ``fill``, ``matches`` and ``copy_out``, which touch one slot that the caller owns.
    """

    def __init__(self, capacity_bytes: int, block_bytes: int, blocks_per_entry: int) -> None:
        self._block_bytes = block_bytes
        self._blocks_per_entry = blocks_per_entry
        object_bytes = block_bytes * blocks_per_entry + TRAILER_BYTES
        self._slab: Slab = allocate_slab(max(capacity_bytes, 2 * object_bytes), object_bytes)
        self._pool = BlockPool(self._slab.shape[0])
        self._storing: set[int] = set()

    @property
    def num_slots(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    def claim_for_store(self) -> int | None:
        """A slot; None if stores have their share or all are in use."""
        if len(self._storing) >= self._pool.num_blocks // 2:
            return None
        slot = self.claim_for_load()
        if slot is not None:
            self._storing.add(slot)
        return slot

    def claim_for_load(self) -> int | None:
        """A slot; None if all are in use."""
        return self._pool.allocate(1)[0] if self._pool.num_free else None

    def release(self, slot: int) -> None:
        self._storing.discard(slot)
        self._pool.release([slot])

    def object_in(self, slot: int) -> Block:
        """The memory of ``slot``: payload and trailer."""
        row: Block = self._slab[slot]
        return row

    def fill(self, slot: int, entry: Entry) -> None:
        """Copy the blocks of ``entry`` into ``slot`` and seal it."""
        for i, block in enumerate(entry.blocks):
            self._block(slot, i)[:] = block
        seal(self._slab[slot], entry.key, self._blocks_per_entry)

    def matches(self, slot: int, entry: Entry) -> bool:
        """Whether ``slot`` holds the object of ``entry``, whole."""
        return is_sealed(self._slab[slot], entry.key, self._blocks_per_entry)

    def copy_out(self, slot: int, entry: Entry) -> None:
        """Copy the blocks in ``slot`` to those of ``entry``."""
        for i, block in enumerate(entry.blocks):
            block[:] = self._block(slot, i)

    def _block(self, slot: int, index: int) -> Block:
        start = index * self._block_bytes
        return self.object_in(slot)[start : start + self._block_bytes]
