"""Whether the nodes of a radix tree agree with each other. For tests: visits every node."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

from .block_pool import BlockPool
from .lifetime import Lifetime
from .radix_node import Node


@dataclasses.dataclass(slots=True)
class Counted:
    """What was found in the nodes."""

    held: int = 0  # blocks
    evictable: int = 0  # of these, those of edges without locks
    pinned: Counter[str] = dataclasses.field(default_factory=Counter)  # of these, those of edges with pins, by salt
    kept: Counter[str] = dataclasses.field(default_factory=Counter)  # and those of edges with pins or soft ones
    leaves: set[Node] = dataclasses.field(default_factory=set)  # without locks


def count_nodes(roots: Iterable[Node], block_size: int, pool: BlockPool) -> Counted:
    """Check and count all nodes. Raises AssertionError."""
    counted = Counted()
    stack = list(roots)
    for root in stack:
        assert root.parent is None and not root.key and not root.blocks
        assert root.children or root.lock_count, "an empty root was kept"
    while stack:
        node = stack.pop()
        counted.held += len(node.blocks)
        counted.evictable += 0 if node.lock_count else len(node.blocks)
        counted.pinned[node.salt] += len(node.blocks) if node.pin_count else 0
        counted.kept[node.salt] += len(node.blocks) if node.pin_count or node.soft_pin_count else 0
        _check_node(node, block_size)
        assert all(pool.refcount(block) >= 1 for block in node.blocks)
        if node.parent is not None and node.is_leaf and node.lock_count == 0:
            counted.leaves.add(node)
        stack += node.children
    return counted


def _check_node(node: Node, block_size: int) -> None:
    assert len(node.blocks) == -(-node.num_tokens // block_size)
    assert len(node.content_keys) == len(node.blocks)
    assert node.start == (0 if node.parent is None else node.parent.start + node.parent.num_tokens)
    assert node.lock_count >= node.pin_count
    assert node.parent is None or node.pin_count >= sum(child.pin_count for child in node.children)
    assert node.parent is None or node.soft_pin_count >= sum(child.soft_pin_count for child in node.children)
    assert all(end.node is node and end.owner == owner for owner, end in node.ends.items())
    durable = node.lifetime is Lifetime.DURABLE
    assert durable or all(child.lifetime is Lifetime.PROCESS for child in node.children), "a path has a hole"
    assert node.is_leaf or node.num_tokens % block_size == 0, "only a leaf may end inside a block"
    assert node.lock_count >= sum(child.lock_count for child in node.children)
    keys = [child.first_block(block_size) for child in node.children]
    assert keys == sorted(keys)
    for child in node.children:
        assert child.parent is node and child.key
