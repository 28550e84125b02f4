"""Free list and reference counts of the blocks of one tier."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import SessileError


class PoolExhausted(SessileError):
    """More blocks were asked for than are free."""


class BlockPool:
    """Alone owns which blocks of a tier are free and how many users each other block has.

    Blocks are numbered ``0 .. num_blocks - 1``. A block is free (no users) or in use; the radix tree is one user of
    the blocks that it caches, each sequence that writes a block of its own is another.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool has at least one block, not {num_blocks}")
        self._refcounts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is used first (warm in caches)

    @property
    def num_blocks(self) -> int:
        return len(self._refcounts)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def refcount(self, block: int) -> int:
        """How many users ``block`` has; 0 is free."""
        return self._refcounts[block]

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` free blocks, each with one user.

        Raises:
            PoolExhausted: fewer are free; nothing was taken.
        """
        if count > len(self._free):
            raise PoolExhausted(f"{count} blocks wanted, {len(self._free)} free of {self.num_blocks}")
        if count == 0:
            return []
        blocks = self._free[-count:][::-1]
        del self._free[-count:]
        for block in blocks:
            self._refcounts[block] = 1
        return blocks

    def retain(self, blocks: Iterable[int]) -> None:
        """Add a user to each of ``blocks``, which are in use already."""
        for block in blocks:
            if self._refcounts[block] == 0:
                raise ValueError(f"block {block} is free and cannot be retained")
            self._refcounts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Take a user from each of ``blocks``; those without users become free."""
        for block in blocks:
            if self._refcounts[block] == 0:
                raise ValueError(f"block {block} is free and cannot be released")
            self._refcounts[block] -= 1
            if self._refcounts[block] == 0:
                self._free.append(block)

    def check_integrity(self) -> None:
        """Raise AssertionError unless each block is either free or has users. For tests: visits every block."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is twice in the free list"
        for block, count in enumerate(self._refcounts):
            assert (count == 0) == (block in free), f"block {block}: {count} users, free: {block in free}"
