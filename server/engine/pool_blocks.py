"""The blocks of the device pool, as the host reads and writes them.

Where the pool is in this machine's memory that is the memory itself. A GPU's is reached through staging buffers
(``device/staged_blocks.py``). Who uses which block is the block pool's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from ...sessions.cache.host_tier import Slab
from ...sessions.cache.tiers import Block


class Landing(Protocol):
    """Where blocks of the pool arrive."""

    @property
    def buffers(self) -> Items[Block]:
        """One for each block, to be filled."""
        ...

    def land(self, count: int) -> None:
        """The first ``count`` are filled: they are in the pool when this returns."""
        ...


class PoolBlocks(Protocol):
    """See the module's docstring. Blocks are given by their numbers."""

    @property
    def block_bytes(self) -> int: ...

    @property
    def at_once(self) -> int:
        """The most blocks of one ``landing``."""
        ...

    def copy_out(self, blocks: Items[int], use: Callable[[int, list[Block]], None]) -> None:
        """Let ``use`` have the bytes that ``blocks`` hold after all steps that were launched: now or a little later, on
        whatever thread, in pieces; it gets the index of a piece's first block, and its blocks, which stand until it
        returns. For the step's thread; steps that are launched from now on may overwrite the blocks."""
        ...

    def read(self, blocks: Items[int]) -> Iterator[list[Block]]:
        """The bytes of ``blocks`` in pieces, each valid until the next. Waits: for another thread than the step's; the
        blocks must stay as they are."""
        ...

    def landing(self, blocks: Items[int]) -> AbstractContextManager[Landing]:
        """For at most ``at_once`` ``blocks``, which nobody else uses. Landing waits: for an I/O thread."""
        ...

    def close(self) -> None:
        """Finish what ``copy_out`` began. Nothing else is called afterwards."""
        ...


def write_blocks(pool: PoolBlocks, blocks: Items[int], contents: Items[Block]) -> None:
    """Put ``contents`` in ``blocks``, and wait for it."""
    for start in range(0, len(blocks), pool.at_once):
        piece = slice(start, start + pool.at_once)
        with pool.landing(blocks[piece]) as landing:
            for buffer, content in zip(landing.buffers, contents[piece], strict=True):
                buffer[:] = content
            landing.land(len(landing.buffers))


@dataclass(frozen=True, slots=True)
class _InPlace:
    buffers: Items[Block]

    def land(self, count: int) -> None:
        pass


class HostBlocks:
    """A pool in memory: [num_blocks, block_bytes]; see ``PoolBlocks``."""

    def __init__(self, rows: Slab) -> None:
        self._rows = rows

    @property
    def block_bytes(self) -> int:
        return int(self._rows.shape[1])

    @property
    def at_once(self) -> int:
        return int(self._rows.shape[0])

    def copy_out(self, blocks: Items[int], use: Callable[[int, list[Block]], None]) -> None:
        use(0, [self._rows[block] for block in blocks])

    def read(self, blocks: Items[int]) -> Iterator[list[Block]]:
        yield [self._rows[block] for block in blocks]

    @contextmanager
    def landing(self, blocks: Items[int]) -> Iterator[Landing]:
        yield _InPlace([self._rows[block] for block in blocks])

    def close(self) -> None:
        pass
