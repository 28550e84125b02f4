"""The top of the radix tree, for people to look at. Bounded: the rest is told in numbers."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:  # the SDK reads ``TreeNode`` and has no numpy
    from .radix_node import Node

MOST_CHILDREN = 24  # of a node that are shown, the latest used
_SHOWN_OWNERS = 4


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """One edge: ``tokens`` of it behind ``start`` others. ``parent``: its index in the list, -1 for a first one.

    ``users``: turns that need it now. ``owners``: sessions whose paths end here, some of them. ``idle_s``: since its
    last use. ``hidden_children``: branches that are not in the list.
    """

    parent: int
    tenant: str
    start: int
    tokens: int
    users: int
    pins: int
    owners: tuple[str, ...]
    superseded: bool
    idle_s: float
    hidden_children: int


def top_of_tree(roots: Sequence[Node], most_nodes: int, now: float) -> tuple[TreeNode, ...]:
    """The nodes nearest to the roots, level by level, in each branch those used last; ``most_nodes`` at most."""
    shown: list[TreeNode] = []
    waiting: deque[tuple[int, Node]] = deque()
    for root in _latest(roots):
        waiting.extend((-1, child) for child in _latest(root.children))
    while waiting and len(shown) < most_nodes:
        parent, node = waiting.popleft()
        children = _latest(node.children)
        fit = max(0, min(len(children), most_nodes - len(shown) - 1 - len(waiting)))
        shown.append(_view(node, parent, now, hidden=len(node.children) - fit))
        waiting.extend((len(shown) - 1, child) for child in children[:fit])
    return tuple(shown)


def _latest(nodes: Sequence[Node]) -> list[Node]:
    return heapq.nlargest(MOST_CHILDREN, nodes, key=lambda node: node.last_use)


def _view(node: Node, parent: int, now: float, hidden: int) -> TreeNode:
    return TreeNode(
        parent=parent,
        tenant=node.salt,
        start=node.start,
        tokens=node.num_tokens,
        users=node.lock_count - node.pin_count,
        pins=node.pin_count,
        owners=tuple(node.ends)[:_SHOWN_OWNERS],
        superseded=node.superseded,
        idle_s=max(0.0, now - node.last_use),
        hidden_children=hidden,
    )
