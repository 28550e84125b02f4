"""Where the sessions' paths end in the tree, and how each is to be kept.

The end of a path is an entry at its last node: it decides the node's place in the order of eviction, and names the
session in events. When a turn of the owner begins, the end is taken away (the turn locks what it needs); when it ends,
the end is set where the turn got to. A hard pin is a lock of its own on the path, under a budget for all. Where a
tenant's pins have a limit, a soft one counts if all of its path has room beside the others when it is asked for, or its
path ends anew; one that a hard pin crowded out waits for the next such time.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from .radix_node import Match, Node, Pin
from .retention import Keeping, Retention, Verdict
from .soft_pins import SoftPins

if TYPE_CHECKING:
    from .radix_tree import RadixTree


class PathEnd:
    """The end of one owner's path. ``node`` is the tree's to change, all else is ``PathEnds``'s. ``wish`` is what was
    asked for; ``keeping``, by which the path ranks, lacks the pin where it has no room. ``over_tenant_budget``: the
    last wish found less room than it asked for, by its tenant's limit."""

    __slots__ = ("_on_lost", "keeping", "node", "over_tenant_budget", "owner", "pin", "wish")

    def __init__(self, owner: str, on_lost: Callable[[PathEnd], None]) -> None:
        self.owner = owner
        self.node: Node | None = None  # None: nothing of the path is cached, or a turn has it
        self.wish = Keeping()
        self.keeping = Keeping()
        self.pin: Pin | None = None
        self.over_tenant_budget = False
        self._on_lost = on_lost

    def lose(self) -> None:
        """The tree gave up all of the path that is the owner's."""
        self._on_lost(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """What became of a wish. ``blocks`` of the path, of which ``cached_tokens`` are cached, are kept as asked,
    or for the owner's return alone where the pin has no room; ``reason``: why not all as asked."""

    verdict: Verdict
    blocks: int
    cached_tokens: int
    reason: str = ""


class PathEnds:
    """Alone owns who wants what to be kept. ``budget_blocks``: how many blocks hard pins may keep together;
    ``tenant_budget_blocks``: how many pins of one tenant, a salt (None: as many as there are)."""

    def __init__(
        self,
        tree: RadixTree,
        clock: Callable[[], float],
        budget_blocks: int,
        tenant_budget_blocks: int | None = None,
    ) -> None:
        self._tree = tree
        self._clock = clock
        self.budget_blocks = budget_blocks
        self._tenant_budget = budget_blocks if tenant_budget_blocks is None else tenant_budget_blocks
        self._soft = None if tenant_budget_blocks is None else SoftPins(tree, tenant_budget_blocks)
        self._ends: dict[str, PathEnd] = {}
        self._expiries: list[tuple[float, int, str]] = []  # when, in which order, whose
        self._pinned: dict[str, PathEnd] = {}  # those with hard pins, the earliest first
        self._order = itertools.count()
        self._broken: list[str] = []
        self.num_broken_pins = 0  # since the start
        self.num_over_tenant_budget = 0  # wishes since the start that a tenant's limit cut; repeated ones count once

    def __len__(self) -> int:
        return len(self._ends)

    def keeping(self, owner: str) -> Keeping:
        """What is wanted for ``owner``'s path now."""
        end = self._ends.get(owner)
        return Keeping() if end is None else end.wish

    @property
    def num_pins(self) -> int:
        """Hard pins that keep at least a block."""
        return len(self._pinned)

    # -- turns ----------------------------------------------------------------------------------------------------

    def begin_turn(self, owner: str) -> None:
        """``owner`` is back, and its turn has locked what it needs of the path."""
        end = self._ends.get(owner)
        if end is not None:
            self._detach(end)
            end.wish = end.wish.after_return()
            self._drop_if_idle(end)

    def end_turn(self, owner: str, node: Node) -> None:
        """``owner``'s path ends in ``node`` now."""
        if owner:
            end = self._end_of(owner)
            self._detach(end)
            self._attach(end, node)
            self._drop_if_idle(end)

    # -- wishes ---------------------------------------------------------------------------------------------------

    def retain(self, owner: str, match: Match, num_tokens: int, retention: Retention) -> Kept:
        """Keep ``owner``'s path, of ``num_tokens`` tokens, as ``retention`` says; ``match`` is what is cached of it.

        A pin that finds no room, a hard one for any of its path, a soft one for all of it, is rejected and changes
        nothing. If the wish says when the owner is expected, that holds all the same: it is clipped then, and the pin
        is tried again whenever the path ends anew.
        """
        now = self._clock()
        end = self._end_of(owner)
        before = end.wish
        node = self._tree.end_of(match)
        self._detach(end)
        end.wish = Keeping(retention, now)
        self._attach(end, node)
        kept = self._judge(end, match, num_tokens)
        if kept.verdict is Verdict.REJECTED:
            self._detach(end)
            end.wish = before
            self._attach(end, node)
        elif end.wish.ends_at < math.inf:
            self._note_expiry(end)
        self._drop_if_idle(end)
        return kept

    def release(self, owner: str) -> None:
        """``owner`` wants nothing any more; the end of its path stays known."""
        end = self._ends.get(owner)
        if end is not None:
            self._let_go(end)

    def move_back(self, owner: str, match: Match) -> None:
        """``owner``'s path ends where ``match`` does, by a rollback; all else stays as it was."""
        end = self._ends.get(owner)
        if end is not None:
            node = self._tree.end_of(match)
            self._detach(end)
            self._attach(end, node)
            self._drop_if_idle(end)

    # -- time and need --------------------------------------------------------------------------------------------

    def expire(self) -> list[str]:
        """End the pins whose time is over; returns their owners."""
        now = self._clock()
        expired: list[str] = []
        while self._expiries and self._expiries[0][0] <= now:
            _, _, owner = heapq.heappop(self._expiries)
            end = self._ends.get(owner)
            if end is not None and end.wish.ends_at <= now:
                self._let_go(end)
                expired.append(owner)
        return expired

    def break_pin(self) -> str | None:
        """A turn can never run otherwise: end the hard pin of the lowest priority, the earliest of these. Returns its
        owner; None: there is none. The path stays cached, and pinned softly."""
        if not self._pinned:
            return None
        now = self._clock()
        end = min(self._pinned.values(), key=lambda end: end.wish.pin_level(now))
        self._unpin(end)
        if end.node is not None:
            self._pin_softly(end, end.node, now)
            self._tree.set_end(end.node, end)
        self.num_broken_pins += 1
        self._broken.append(end.owner)
        return end.owner

    def take_broken(self) -> list[str]:
        """The owners whose hard pins were broken since the last call."""
        broken, self._broken = self._broken, []
        return broken

    # -- parts ----------------------------------------------------------------------------------------------------

    def _judge(self, end: PathEnd, match: Match, num_tokens: int) -> Kept:
        retention = end.wish.retention
        assert retention is not None
        cached = len(match.blocks) + (match.tail is not None)
        tokens = match.num_tokens if match.tail is not None else match.num_tokens - match.partial_tokens
        missing = match.num_tokens < num_tokens - 1  # the KV of the last token is made by the next turn
        there = f"{match.num_tokens} of {num_tokens} tokens are on the device"
        awaited = retention.expected_idle_s is not None
        no_room = (Verdict.CLIPPED, cached) if awaited else (Verdict.REJECTED, 0)
        if not retention.hard and end.keeping is not end.wish:
            self._note_room(end, lacks=True)
            return Kept(*no_room, tokens, self._no_room_softly(match.salt))
        if not retention.hard:
            self._note_room(end, lacks=False)
            clipped = missing and retention.is_pin
            return Kept(Verdict.CLIPPED if clipped else Verdict.ACCEPTED, cached, tokens, there if clipped else "")
        pinned = 0 if end.pin is None else end.pin.num_blocks
        if pinned < cached:
            self._note_room(end, lacks=self._is_tenants_fault(match.salt))
            in_part = (Verdict.CLIPPED, pinned) if pinned else no_room
            return Kept(*in_part, tokens, self._no_room(match.salt))
        self._note_room(end, lacks=False)
        return Kept(Verdict.CLIPPED if missing else Verdict.ACCEPTED, pinned, tokens, there if missing else "")

    def _note_room(self, end: PathEnd, *, lacks: bool) -> None:
        """Whether a wish lacks room by its tenant's limit; counted where the one before it did not."""
        self.num_over_tenant_budget += lacks and not end.over_tenant_budget
        end.over_tenant_budget = lacks

    def _room(self, salt: str) -> int:
        """How many blocks more hard pins of a tenant may keep."""
        return min(self._room_of_tenant(salt), self._room_of_all())

    def _room_of_tenant(self, salt: str) -> int:
        return self._tenant_budget - self._tree.num_pinned_blocks_of(salt)

    def _room_of_all(self) -> int:
        return self.budget_blocks - self._tree.num_pinned_blocks

    def _no_room(self, salt: str) -> str:
        """Why a hard pin of a tenant got less than all."""
        if self._is_tenants_fault(salt):
            used = self._tree.num_pinned_blocks_of(salt)
            return f"the budget of a tenant's hard pins is {self._tenant_budget} blocks, of which {used} are used"
        used = self._tree.num_pinned_blocks
        return f"the budget of hard pins is {self.budget_blocks} blocks, of which {used} are used"

    def _no_room_softly(self, salt: str) -> str:
        assert self._soft is not None
        used = self._soft.num_blocks(salt)
        return f"the pins of a tenant may keep {self._soft.most_blocks} blocks, of which {used} are used"

    def _is_tenants_fault(self, salt: str) -> bool:
        """Whether it is the tenant's own budget that has less room than that of all."""
        return self._room_of_tenant(salt) < self._room_of_all()

    def _note_expiry(self, end: PathEnd) -> None:
        heapq.heappush(self._expiries, (end.wish.ends_at, next(self._order), end.owner))
        if len(self._expiries) > 2 * len(self._ends) + 64:  # most of them were replaced by later wishes
            live = [end for end in self._ends.values() if end.wish.ends_at < math.inf]
            self._expiries = [(end.wish.ends_at, next(self._order), end.owner) for end in live]
            heapq.heapify(self._expiries)

    def _end_of(self, owner: str) -> PathEnd:
        end = self._ends.get(owner)
        if end is None:
            end = self._ends[owner] = PathEnd(owner, self._lost)
        return end

    def _attach(self, end: PathEnd, node: Node | None) -> None:
        """Set the end in ``node``, if there is one, and pin the path as far as the budgets go if it is to be."""
        end.keeping = end.wish
        if node is None:
            return
        now = self._clock()
        retention = end.wish.retention
        if retention is not None and retention.hard and end.wish.ends_at > now:
            end.pin = self._tree.pin(node, self._room(node.salt))
            if end.pin is not None:
                self._pinned[end.owner] = end
                self._crowd_out(node.salt, now)
        if end.pin is None or end.pin.node is not node:
            self._pin_softly(end, node, now)
        self._tree.set_end(node, end)

    def _pin_softly(self, end: PathEnd, node: Node, now: float) -> None:
        """Let the path rank as it is wished, if its tenant's pins have room for it."""
        end.keeping = end.wish
        if self._soft is None or end.wish.pin_level(now) <= 0:
            return
        if not self._soft.take(end, node):
            end.keeping = end.wish.without_pin()

    def _crowd_out(self, salt: str, now: float) -> None:
        """A tenant has a hard pin more: its soft ones that have no room beside it count no more."""
        if self._soft is not None:
            for end in self._soft.crowded_out(salt, now):
                assert end.node is not None
                end.keeping = end.wish.without_pin()
                self._tree.set_end(end.node, end)

    def _detach(self, end: PathEnd) -> None:
        self._unpin(end)
        self._drop_soft(end)
        self._tree.clear_end(end)

    def _let_go(self, end: PathEnd) -> None:
        node = end.node
        self._detach(end)
        end.wish = end.keeping = Keeping()
        end.over_tenant_budget = False
        if node is not None:
            self._tree.set_end(node, end)
        self._drop_if_idle(end)

    def _unpin(self, end: PathEnd) -> None:
        if end.pin is not None:
            self._tree.unpin(end.pin)
            end.pin = None
            del self._pinned[end.owner]

    def _drop_soft(self, end: PathEnd) -> None:
        if self._soft is not None:
            self._soft.drop(end)

    def _lost(self, end: PathEnd) -> None:
        self._unpin(end)
        self._drop_soft(end)
        self._drop_if_idle(end)

    def _drop_if_idle(self, end: PathEnd) -> None:
        """Forget an owner of whom nothing is cached, and who wants nothing."""
        if end.node is None and end.wish.retention is None:
            del self._ends[end.owner]
