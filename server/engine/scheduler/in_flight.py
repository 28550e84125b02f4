"""Prefixes that are being computed or loaded right now, and the turns that wait for them.

A block is named by its content key, which names the whole prefix up to its end. A turn that runs or loads, the
*leader*, announces the keys of the whole blocks that it is about to fill. A waiting turn whose first missing block is
among them *follows*: it waits until the deepest block that both share is there. It holds nothing meanwhile; when its
leader ends, gives its blocks back or is late, it is let go and simply goes on.
"""

from __future__ import annotations

import dataclasses
import heapq

from ..sequence import Sequence
from .urgency import Urgency


@dataclasses.dataclass(slots=True)
class _Leader:
    content_keys: list[bytes]  # of its whole blocks
    done: int  # of these, are there
    followers: list[tuple[int, int, Sequence]] = dataclasses.field(default_factory=list)  # a heap by blocks waited for
    urgency: Urgency | None = None  # of the most urgent one among these, or that was among them


class InFlightPrefixes:
    """Alone knows who computes what, and who waits for whom."""

    def __init__(self) -> None:
        self._leaders: dict[Sequence, _Leader] = {}
        self._computed_by: dict[bytes, Sequence] = {}
        self._leader_of: dict[Sequence, Sequence] = {}

    def begin(self, leader: Sequence, content_keys: list[bytes], num_there: int) -> None:
        """``leader`` fills the blocks of ``content_keys``, of which the first ``num_there`` are there."""
        self._leaders[leader] = _Leader(content_keys, num_there)
        for key in content_keys[num_there:]:
            self._computed_by.setdefault(key, leader)

    def find(self, content_keys: list[bytes], num_there: int) -> tuple[Sequence, int] | None:
        """Who fills the deepest block of ``content_keys`` that anybody does, and how many blocks that makes; None:
        nobody fills the first after ``num_there``."""
        low, high = num_there, len(content_keys)  # all before low are filled by somebody, none from high on
        while low < high:
            middle = (low + high) // 2
            if content_keys[middle] in self._computed_by:
                low = middle + 1
            else:
                high = middle
        return None if low == num_there else (self._computed_by[content_keys[low - 1]], low)

    def follow(self, follower: Sequence, urgency: Urgency, leader: Sequence, num_blocks: int) -> None:
        """``follower`` waits until ``leader`` has the first ``num_blocks``."""
        state = self._leaders[leader]
        heapq.heappush(state.followers, (num_blocks, follower.order, follower))
        state.urgency = urgency if state.urgency is None else min(state.urgency, urgency)
        self._leader_of[follower] = leader

    def urgency(self, leader: Sequence, own: Urgency) -> Urgency:
        """That of ``leader``, whose own is ``own``: it inherits from those who wait for it."""
        state = self._leaders.get(leader)
        return own if state is None or state.urgency is None else min(own, state.urgency)

    def leave(self, follower: Sequence) -> None:
        """``follower`` ends; harmless if it follows nobody."""
        self._leader_of.pop(follower, None)

    def advance(self, leader: Sequence, num_blocks: int) -> list[Sequence]:
        """``leader`` has its first ``num_blocks`` now. Returns the followers that are let go."""
        state = self._leaders.get(leader)
        if state is None:
            return []
        for key in state.content_keys[state.done : num_blocks]:
            self._forget(key, leader)
        state.done = max(state.done, num_blocks)
        let_go: list[Sequence] = []
        while state.followers and state.followers[0][0] <= num_blocks:
            self._let_go(heapq.heappop(state.followers)[2], leader, let_go)
        if not state.followers:
            state.urgency = None
        if state.done >= len(state.content_keys):
            let_go += self.end(leader)
        return let_go

    def end(self, leader: Sequence) -> list[Sequence]:
        """``leader`` fills no more blocks; harmless if it filled none. Returns the followers that are let go."""
        state = self._leaders.pop(leader, None)
        if state is None:
            return []
        for key in state.content_keys[state.done :]:
            self._forget(key, leader)
        let_go: list[Sequence] = []
        for _, _, follower in state.followers:
            self._let_go(follower, leader, let_go)
        return let_go

    def check_integrity(self) -> None:
        """Raise AssertionError unless each follower has a leader that goes on, and each key somebody who fills it."""
        assert set(self._leader_of.values()) <= set(self._leaders), "a turn waits for one that computes nothing"
        assert set(self._computed_by.values()) <= set(self._leaders), "nobody fills a block that is announced"

    def _let_go(self, follower: Sequence, leader: Sequence, let_go: list[Sequence]) -> None:
        if self._leader_of.get(follower) is leader:
            del self._leader_of[follower]
            let_go.append(follower)

    def _forget(self, key: bytes, leader: Sequence) -> None:
        if self._computed_by.get(key) is leader:
            del self._computed_by[key]
