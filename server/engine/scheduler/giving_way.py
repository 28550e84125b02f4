"""Which running turn gives its place to one that waits.

Two have to: a batch turn, which only fills what others leave; and a turn of a tenant that runs more than its part, by
its weight, while another has less. Each such change brings the places closer to what is fair, so none is undone by the
next.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence as Items

from ..messages import Priority
from ..sequence import Sequence
from .fair_shares import FairShares
from .urgency import ClassPatience


def offline_victim(running: Items[Sequence], level: int, patience: ClassPatience, now: float) -> Sequence | None:
    """A batch turn, the last one of ``running``, for one that waits in the class ``level``."""
    if level >= Priority.BATCH:
        return None
    return next((each for each in reversed(running) if patience.level(each, now) >= Priority.BATCH), None)


def unfair_victim(
    running: Items[Sequence], waits: Sequence, shares: FairShares, level: int, patience: ClassPatience, now: float
) -> Sequence | None:
    """The last turn of a tenant that has, by its weight, as many places as the tenant of ``waits`` or more, even after
    this change, and was served more, even when what the turn was charged for and did not get is taken back."""
    tenant = waits.turn.tenant
    places = collections.Counter(each.turn.tenant for each in running)
    most = max(places, key=lambda who: places[who] / shares.weight(who))
    if (places[most] - 1) / shares.weight(most) < (places[tenant] + 1) / shares.weight(tenant):
        return None
    theirs = (each for each in reversed(running) if each.turn.tenant == most)
    victim = next((each for each in theirs if patience.level(each, now) >= level), None)
    if victim is None:
        return None
    taken_back = max(0, victim.num_charged - victim.num_computed) / shares.weight(most)
    return victim if shares.served(most) - taken_back > shares.served(tenant) else None
