"""In which order cached leaves are given up.

The order is kept, never recomputed by a scan: a heap with lazy deletion. An entry is stale when its leaf was locked,
got children or was used again since; stale entries are dropped when they come to the top, or all at once when they
outnumber the live ones. A rank that holds until a certain time only is renewed then, by a second heap.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

from .radix_node import Node

FADES_S = 300.0  # seconds without use after which it is e times less probable that a path is used again


class Rank(NamedTuple):
    """The smallest ``key`` goes first. It holds until ``until``, in seconds of the tree's clock."""

    key: tuple[float, ...]
    until: float


class EvictionPolicy(Protocol):
    """Ranks a leaf that became evictable, as things are at ``now``."""

    def rank(self, node: Node, now: float) -> Rank: ...


class LeastRecentlyUsed:
    """The leaf that was matched, locked or inserted longest ago goes first."""

    def rank(self, node: Node, now: float) -> Rank:
        return Rank((node.last_use,), math.inf)


class ExpectedValue:
    """The leaf whose block is worth least goes first:

    1. what was superseded, unless another's path ends there;
    2. what is pinned goes after all that is not, by priority;
    3. where an owner is expected back soon, the path goes after those where nobody is, the latest to return first;
    4. of the others, by the probability that it is used again times the seconds to bring it back.

    The probability falls by a factor of e every ``FADES_S`` since the last use: the logarithm of the value is
    ``ln(seconds) - age / FADES_S``, whose order does not change as time goes by. All blocks have one size. An owner who
    is expected after ``FADES_S`` or later keeps nothing warm until that time has come nearer.
    """

    def __init__(self, bring_back_s: Callable[[int], float] = lambda start: 1.0) -> None:
        """``bring_back_s``: seconds to have a block again that stands after so many tokens of its path."""
        self._bring_back_s = bring_back_s

    def rank(self, node: Node, now: float) -> Rank:
        keepings = [end.keeping for end in node.ends.values()]
        live = 0.0 if node.superseded and not keepings else 1.0
        level = max((keeping.pin_level(now) for keeping in keepings), default=0)
        due = min((keeping.due for keeping in keepings if keeping.is_awaited(now, FADES_S)), default=math.inf)
        until = min((keeping.holds_until(now, FADES_S) for keeping in keepings), default=math.inf)
        if due < math.inf:
            return Rank((live, level, 1.0, -due), until)
        absence = min((keeping.absence(now) for keeping in keepings), default=0.0)
        seconds = max(self._bring_back_s(node.start + node.num_tokens), 1e-9)
        return Rank((live, level, 0.0, node.last_use - absence + FADES_S * math.log(seconds)), until)


class EvictionOrder:
    """The evictable leaves of a tree, first to go first. The tree says which leaves these are."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._tickets: dict[Node, int] = {}  # evictable leaf -> its live entry
        self._heap: list[tuple[tuple[float, ...], int, Node]] = []
        self._renewals: list[tuple[float, int, Node]] = []  # by the time until which a rank holds
        self._next_ticket = itertools.count()

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, node: Node) -> bool:
        return node in self._tickets

    def add(self, node: Node, now: float) -> None:
        """Make ``node`` evictable at its present rank; an earlier rank is forgotten."""
        ticket = next(self._next_ticket)
        self._tickets[node] = ticket
        rank = self._policy.rank(node, now)
        heapq.heappush(self._heap, (rank.key, ticket, node))
        if rank.until < math.inf:
            heapq.heappush(self._renewals, (rank.until, ticket, node))
        if len(self._heap) > 2 * len(self._tickets) + 64:
            self._heap = [entry for entry in self._heap if self._is_live(entry[1], entry[2])]
            heapq.heapify(self._heap)
        if len(self._renewals) > 2 * len(self._tickets) + 64:
            self._renewals = [entry for entry in self._renewals if self._is_live(entry[1], entry[2])]
            heapq.heapify(self._renewals)

    def discard(self, node: Node) -> None:
        """Make ``node`` not evictable; harmless if it was not."""
        self._tickets.pop(node, None)

    def first(self, now: float) -> Node | None:
        """The leaf to give up next; it stays in the order."""
        while self._renewals and self._renewals[0][0] <= now:
            _, ticket, node = heapq.heappop(self._renewals)
            if self._is_live(ticket, node):
                self.add(node, now)
        while self._heap:
            _, ticket, node = self._heap[0]
            if self._is_live(ticket, node):
                return node
            heapq.heappop(self._heap)
        return None

    def _is_live(self, ticket: int, node: Node) -> bool:
        return self._tickets.get(node) == ticket
