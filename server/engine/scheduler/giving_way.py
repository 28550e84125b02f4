"""Which running turn gives its place to one that waits.

Two have to: a batch turn, which only fills what others leave; and a turn of a tenant that runs more than its part,
while another has less. Each such change brings the places closer to what is fair, so none is undone by the next.
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
    """The last turn of a tenant that runs two more than the tenant of ``waits``, and was served more."""
    tenant = waits.turn.tenant
    places = collections.Counter(each.turn.tenant for each in running)
    most, count = places.most_common(1)[0]
    if count - places[tenant] < 2 or shares.served(most) <= shares.served(tenant):
        return None
    theirs = (each for each in reversed(running) if each.turn.tenant == most)
    return next((each for each in theirs if patience.level(each, now) >= level), None)
