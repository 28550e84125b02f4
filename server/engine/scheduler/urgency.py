"""Which of two turns goes first.

Each turn is *due* some time after its arrival: ``PATIENCE`` times the seconds that its uncached tokens take to compute,
or when its deadline leaves just enough time for them. The turn due first goes first. So short work passes long work,
but only for a while: a turn is never passed by one that arrives after it was due. Both ends of a comparison move with
the clock alike, so the order of two turns that wait never changes, and a heap holds it.

Classes come before that: interactive, background, batch. A turn that has waited for its class's patience counts as one
of the class above.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..engine_config import EngineConfig
from ..messages import Priority
from ..sequence import Sequence

PATIENCE = 4.0  # a turn may be passed for so many times the seconds of its own prefill


class Urgency(NamedTuple):
    """The smaller one goes first."""

    level: int  # of Priority; what waiting has made of it
    due: float  # seconds on the engine's clock
    order: int  # of arrival


class ClassPatience:
    """When waiting lifts a turn to the class above."""

    def __init__(self, background_s: float, batch_s: float) -> None:
        """Seconds that a turn of the class waits before it is lifted; infinite: never."""
        self._patience_s = {Priority.BACKGROUND: background_s, Priority.BATCH: batch_s}

    @classmethod
    def of(cls, config: EngineConfig) -> ClassPatience:
        """As configured, where 0 means never."""
        return cls(config.background_patience_s or math.inf, config.batch_patience_s or math.inf)

    def level(self, sequence: Sequence, now: float) -> int:
        """The class that ``sequence`` counts as at ``now``."""
        level = int(sequence.turn.priority)
        while level > Priority.INTERACTIVE and self.lifted_at(sequence, level) <= now:
            level -= 1
        return level

    def lifted_at(self, sequence: Sequence, level: int) -> float:
        """When ``sequence``, which counts as ``level``, is lifted to the class above; infinite: never."""
        if level <= Priority.INTERACTIVE:
            return math.inf
        passed = range(level, int(sequence.turn.priority) + 1)
        return sequence.arrival + sum(self._patience_s[Priority(each)] for each in passed)


def due_at(sequence: Sequence, work_s: float) -> float:
    """When ``sequence`` is due if ``work_s`` seconds of prefill are left."""
    due = sequence.arrival + PATIENCE * work_s
    if sequence.turn.deadline_s is None:
        return due
    return min(due, sequence.arrival + sequence.turn.deadline_s - work_s)
