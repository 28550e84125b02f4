"""Locks and pins on the paths of the radix tree: what keeps an edge from being given up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from .evictable import EvictableLeaves
from .lifetime import Lifetime
from .radix_node import Node, PathLock, Pin


class PathLocks:
    """Alone owns the counts of locks and pins at the edges, and knows how many blocks nobody keeps.

    A lock at a node is one at each node above it. A leaf without locks is in ``order``, among those
    that may be given up. What a lock is set on counts as used.
    """

    def __init__(self, order: EvictableLeaves, clock: Callable[[], float]) -> None:
        self._order = order
        self._clock = clock
        self.num_evictable_blocks = 0  # blocks of edges without locks
        self.num_pinned_blocks = 0  # blocks kept by pins
        self._pinned_of: dict[str, int] = {}  # of these, each tenant's; a tenant is a salt
        self._kept_of: dict[str, int] = {}  # these, and those that soft pins count, each tenant's

    def lock(self, node: Node) -> PathLock:
        """Keep the path to the end of ``node``."""
        now = self._clock()
        at: Node | None = node
        while at is not None:
            self._lock_edge(at, now)
            at = at.parent
        return PathLock(node)

    def use(self, lock: PathLock, lifetime: Lifetime) -> None:
        """A sequence goes on from the path of ``lock``, and its KV may go as far as ``lifetime`` says. One whose KV is
        DURABLE makes the whole path so."""
        lock.lifetime = lifetime
        if lifetime is Lifetime.DURABLE:
            for at in itertools.takewhile(lambda at: at.lifetime is Lifetime.PROCESS, up(lock.node)):
                at.lifetime = lifetime

    def move(self, lock: PathLock, node: Node) -> None:
        """Lock from ``lock.node`` down to ``node``, which lies below it."""
        now = self._clock()
        at = node
        while at is not lock.node:
            self._lock_edge(at, now)
            if lock.lifetime is Lifetime.DURABLE:
                at.lifetime = lock.lifetime
            assert at.parent is not None
            at = at.parent
        at.last_use = now
        lock.node = node

    def unlock(self, lock: PathLock) -> Node:
        """End ``lock``; returns the root of its path."""
        at = lock.node
        while True:
            assert at.lock_count > 0
            at.lock_count -= 1
            if at.lock_count == 0:
                self.num_evictable_blocks += len(at.blocks)
                if at.is_leaf and at.parent is not None:
                    self._order.add(at)
            if at.parent is None:
                return at
            at = at.parent

    def num_pinned_blocks_of(self, salt: str) -> int:
        """Blocks of a tenant's that are kept by pins."""
        return self._pinned_of.get(salt, 0)

    def num_kept_blocks_of(self, salt: str) -> int:
        """Blocks of a tenant's that are kept by pins, or counted by soft ones."""
        return self._kept_of.get(salt, 0)

    def num_unkept_blocks(self, node: Node) -> int:
        """Blocks of the path to the end of ``node`` that ``num_kept_blocks_of`` has not counted yet."""
        return sum(0 if _is_kept(at) else len(at.blocks) for at in up(node))

    def count_softly(self, node: Node) -> None:
        """Count the path to the end of ``node`` for a soft pin, which locks nothing."""
        for at in up(node):
            if not _is_kept(at):
                _add(self._kept_of, at.salt, len(at.blocks))
            at.soft_pin_count += 1

    def uncount_softly(self, node: Node) -> None:
        """End a ``count_softly``, of whose path ``node`` is the end by now."""
        for at in up(node):
            assert at.soft_pin_count > 0
            at.soft_pin_count -= 1
            if not _is_kept(at):
                _add(self._kept_of, at.salt, -len(at.blocks))

    def pin(self, node: Node, num_blocks: int) -> Pin:
        """Keep the path to the end of ``node``, of ``num_blocks``, for a pin."""
        self.lock(node)
        for at in up(node):
            if not at.pin_count:
                self._count_pinned(at, len(at.blocks))
            at.pin_count += 1
        return Pin(node, num_blocks=num_blocks)

    def unpin(self, pin: Pin) -> Node:
        """End ``pin``; returns the root of its path."""
        for at in up(pin.node):
            at.pin_count -= 1
            if not at.pin_count:
                self._count_pinned(at, -len(at.blocks))
        return self.unlock(pin)

    def added(self, node: Node, num_blocks: int) -> None:
        """An edge that nobody locks has so many blocks more; below 0: fewer."""
        self.num_evictable_blocks += num_blocks
        if _is_kept(node):
            _add(self._kept_of, node.salt, num_blocks)

    def _count_pinned(self, node: Node, change: int) -> None:
        """``node`` has its first pin, or has lost its last one."""
        self.num_pinned_blocks += change
        _add(self._pinned_of, node.salt, change)
        if not node.soft_pin_count:
            _add(self._kept_of, node.salt, change)

    def _lock_edge(self, node: Node, now: float) -> None:
        if node.lock_count == 0:
            self._order.discard(node)
            self.num_evictable_blocks -= len(node.blocks)
        node.lock_count += 1
        node.last_use = now
        node.superseded = False


def _is_kept(node: Node) -> bool:
    return bool(node.pin_count or node.soft_pin_count)


def _add(counts: dict[str, int], salt: str, change: int) -> None:
    """Change a tenant's count; one of 0 is not in ``counts``."""
    count = counts.get(salt, 0) + change
    if count:
        counts[salt] = count
    else:
        counts.pop(salt, None)


def up(node: Node) -> Iterator[Node]:
    """``node`` and all above it, without the root."""
    at: Node | None = node
    while at is not None and at.parent is not None:
        yield at
        at = at.parent
