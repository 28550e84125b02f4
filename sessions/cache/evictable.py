"""The evictable leaves of all tenants, and whose go first: those of tenants over their quota."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .eviction import EvictionOrder, EvictionPolicy
from .radix_node import Node


class NextToGo(NamedTuple):
    """Give up ``most_blocks`` of ``leaf`` at most, before asking again."""

    leaf: Node
    most_blocks: int
    over_quota: bool


class EvictableLeaves:
    """One order of all leaves and, where tenants have a quota, one of each tenant's. A tenant is a salt.

    ``quota_blocks``: how many cached blocks a tenant may have before its own go first; None: as many as there are.
    """

    def __init__(self, policy: EvictionPolicy, clock: Callable[[], float], quota_blocks: int | None = None) -> None:
        self._policy = policy
        self._clock = clock
        self._quota_blocks = quota_blocks
        self._all = EvictionOrder(policy)
        self._of_tenant: dict[str, EvictionOrder] = {}
        self._num_blocks: dict[str, int] = {}  # by tenant
        self._over_quota: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, node: Node) -> bool:
        return node in self._all

    @property
    def num_blocks_by_tenant(self) -> dict[str, int]:
        """Cached blocks, locked ones included. Empty where tenants have no quota."""
        return dict(self._num_blocks)

    def add(self, leaf: Node) -> None:
        """``leaf`` may be given up, and ranks as of now."""
        now = self._clock()
        self._all.add(leaf, now)
        if self._quota_blocks is not None:
            if leaf.salt not in self._of_tenant:
                self._of_tenant[leaf.salt] = EvictionOrder(self._policy)
            self._of_tenant[leaf.salt].add(leaf, now)

    def discard(self, node: Node) -> None:
        """``node`` may not be given up; harmless if it was not in the order."""
        self._all.discard(node)
        if node.salt in self._of_tenant:
            self._of_tenant[node.salt].discard(node)

    def note_blocks(self, salt: str, change: int) -> None:
        """A tenant has so many cached blocks more, or fewer."""
        if self._quota_blocks is None:
            return
        count = self._num_blocks.get(salt, 0) + change
        if count:
            self._num_blocks[salt] = count
        else:
            self._num_blocks.pop(salt, None)
            self._of_tenant.pop(salt, None)
        if count > self._quota_blocks:
            self._over_quota[salt] = None
        else:
            self._over_quota.pop(salt, None)

    def next(self) -> NextToGo | None:
        """The leaf to give up next; None: there is none."""
        now = self._clock()
        for salt in self._over_quota:
            leaf = self._of_tenant[salt].first(now) if salt in self._of_tenant else None
            if leaf is not None:
                assert self._quota_blocks is not None
                return NextToGo(leaf, self._num_blocks[salt] - self._quota_blocks, over_quota=True)
        leaf = self._all.first(now)
        return None if leaf is None else NextToGo(leaf, len(leaf.blocks), over_quota=False)
