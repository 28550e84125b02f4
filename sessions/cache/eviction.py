"""In which order cached leaves are given up.

The order is kept, never recomputed by a scan: a heap with lazy deletion. An entry is stale when its leaf was locked,
got children or was used again since; stale entries are dropped when they come to the top, or all at once when they
outnumber the live ones.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .radix_tree import Node


class EvictionPolicy(Protocol):
    """Ranks a leaf that became evictable: the smallest rank goes first."""

    def rank(self, node: Node) -> tuple[float, ...]: ...


class LeastRecentlyUsed:
    """The leaf that was matched, locked or inserted longest ago goes first."""

    def rank(self, node: Node) -> tuple[float, ...]:
        return (float(node.last_use),)


class EvictionOrder:
    """The evictable leaves of a tree, first to go first. The tree says which leaves these are."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._tickets: dict[Node, int] = {}  # evictable leaf -> its live entry
        self._heap: list[tuple[tuple[float, ...], int, Node]] = []
        self._next_ticket = itertools.count()

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, node: Node) -> bool:
        return node in self._tickets

    def add(self, node: Node) -> None:
        """Make ``node`` evictable at its present rank; an earlier rank is forgotten."""
        ticket = next(self._next_ticket)
        self._tickets[node] = ticket
        heapq.heappush(self._heap, (self._policy.rank(node), ticket, node))
        if len(self._heap) > 2 * len(self._tickets) + 64:
            self._drop_stale()

    def discard(self, node: Node) -> None:
        """Make ``node`` not evictable; harmless if it was not."""
        self._tickets.pop(node, None)

    def first(self) -> Node | None:
        """The leaf to give up next; it stays in the order."""
        while self._heap:
            _, ticket, node = self._heap[0]
            if self._tickets.get(node) == ticket:
                return node
            heapq.heappop(self._heap)
        return None

    def _drop_stale(self) -> None:
        self._heap = [entry for entry in self._heap if self._tickets.get(entry[2]) == entry[1]]
        heapq.heapify(self._heap)
