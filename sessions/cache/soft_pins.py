"""Soft pins of tenants that may keep a limited number of blocks: which of them count."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .path_locks import up
from .radix_node import Node

if TYPE_CHECKING:
    from .path_ends import PathEnd


class SoftPins:
    """Alone knows the softly pinned ends that count. ``most_blocks``: how many blocks the pins of a tenant may keep, a
    block that several of its paths share counted once; its hard pins come first."""

    def __init__(self, most_blocks: int) -> None:
        self.most_blocks = most_blocks
        self._ends: dict[str, PathEnd] = {}  # by owner, the earliest first

    def take(self, end: PathEnd, node: Node, hard: Iterable[Node]) -> bool:
        """Count ``end``, whose path ends in ``node``; ``hard``: where hard pins end. False: there is no room for all of
        its path beside the tenant's others."""
        paths = [*self._nodes_of(node.salt), node]
        if _num_blocks([*paths, *(at for at in hard if at.salt == node.salt)]) > self.most_blocks:
            return False
        self._ends[end.owner] = end
        return True

    def drop(self, end: PathEnd) -> None:
        """``end`` counts no more; harmless if it did not."""
        self._ends.pop(end.owner, None)

    def crowded_out(self, salt: str, hard: Iterable[Node], now: float) -> list[PathEnd]:
        """The ends of a tenant for which its hard pins leave no room, those of the lowest priority first to be among
        them. They count no more."""
        seen: set[Node] = set()
        used = sum(_add_path(at, seen) for at in hard if at.salt == salt)
        crowded: list[PathEnd] = []
        ends = [end for end in self._ends.values() if end.node is not None and end.node.salt == salt]
        for end in sorted(ends, key=lambda end: -end.wish.pin_level(now)):
            assert end.node is not None
            if used + _num_blocks([end.node], seen) > self.most_blocks:
                crowded.append(end)
            else:
                used += _add_path(end.node, seen)
        for end in crowded:
            self.drop(end)
        return crowded

    def num_blocks(self, salt: str, hard: Iterable[Node]) -> int:
        """How many blocks the pins of a tenant keep."""
        return _num_blocks([*self._nodes_of(salt), *(at for at in hard if at.salt == salt)])

    def _nodes_of(self, salt: str) -> list[Node]:
        nodes = [end.node for end in self._ends.values()]
        return [node for node in nodes if node is not None and node.salt == salt]


def _num_blocks(ends: Iterable[Node], known: Iterable[Node] = ()) -> int:
    """Blocks of the paths to ``ends``, each once, without those of ``known`` edges."""
    seen = set(known)
    return sum(_add_path(end, seen) for end in ends)


def _add_path(end: Node, seen: set[Node]) -> int:
    """Add the edges of a path to ``seen``; returns how many blocks those have that were not there."""
    added = 0
    for at in up(end):
        if at in seen:
            break  # then all above it are
        seen.add(at)
        added += len(at.blocks)
    return added
