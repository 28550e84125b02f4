"""Soft pins of tenants that may keep a limited number of blocks: which of them count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .radix_node import Node

if TYPE_CHECKING:
    from .path_ends import PathEnd
    from .radix_tree import RadixTree


class SoftPins:
    """Alone knows the softly pinned ends that count. ``most_blocks``: how many blocks the pins of a tenant, a salt, may
    keep, a block that several of its paths share counted once; its hard pins come first.

    The tree has the counts, one at each edge of a path: what a pin asks of it is a walk up its own path.
    """

    def __init__(self, tree: RadixTree, most_blocks: int) -> None:
        self._tree = tree
        self.most_blocks = most_blocks
        self._salts: dict[str, str] = {}  # by owner
        self._ends: dict[str, dict[str, PathEnd]] = {}  # by salt and owner, the earliest first

    def take(self, end: PathEnd, node: Node) -> bool:
        """Count ``end``, whose path ends in ``node``. False: there is no room for all of its path beside the tenant's
        others, and it does not count."""
        self.drop(end)
        if self.num_blocks(node.salt) + self._tree.num_unkept_blocks(node) > self.most_blocks:
            return False
        self._tree.count_softly(node)
        self._salts[end.owner] = node.salt
        self._ends.setdefault(node.salt, {})[end.owner] = end
        return True

    def drop(self, end: PathEnd) -> None:
        """``end`` counts no more; harmless if it did not. To be called before the end of its path is moved."""
        salt = self._salts.pop(end.owner, None)
        if salt is None:
            return
        of_tenant = self._ends[salt]
        del of_tenant[end.owner]
        if not of_tenant:
            del self._ends[salt]
        if end.node is not None:  # else nothing of its path is left to be counted
            self._tree.uncount_softly(end.node)

    def crowded_out(self, salt: str, now: float) -> list[PathEnd]:
        """The ends of a tenant for which its hard pins leave no room, those of the lowest priority first to be among
        them. They count no more."""
        if self.num_blocks(salt) <= self.most_blocks:
            return []
        ends = sorted(self._ends.get(salt, {}).values(), key=lambda end: -end.wish.pin_level(now))
        for end in ends:
            self.drop(end)
        return [end for end in ends if end.node is not None and not self.take(end, end.node)]

    def num_blocks(self, salt: str) -> int:
        """How many blocks the pins of a tenant keep, hard ones included."""
        return self._tree.num_kept_blocks_of(salt)
