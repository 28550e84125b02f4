"""What is counted of the turns that waited, and how fast the engine is: what a full queue's retry time is made of."""

from __future__ import annotations

from ..messages import Priority, QueueStats
from ..sequence import Sequence
from .waiting_turns import WaitingTurns

KEPT = 0.98  # of what was measured before, when a step or a turn is added


class _Mean:
    """An exponentially weighted quotient of two sums; 0 before there is anything."""

    def __init__(self) -> None:
        self._above = self._below = 0.0

    def add(self, above: float, below: float) -> None:
        self._above = self._above * KEPT + above
        self._below = self._below * KEPT + below

    @property
    def value(self) -> float:
        return self._above / self._below if self._below > 0 else 0.0


class QueueCounts:
    """Counters since the start by class, and recent means."""

    def __init__(self) -> None:
        self._started = [0] * len(Priority)
        self._expired = [0] * len(Priority)
        self._waited_s = [0.0] * len(Priority)
        self._prefill_speed = _Mean()
        self._turn_s = _Mean()

    @property
    def prefill_tokens_per_s(self) -> float:
        """While there are prompts to compute, other turns' decodes beside them included."""
        return self._prefill_speed.value

    @property
    def turn_s(self) -> float:
        """Seconds from a turn's start to its end."""
        return self._turn_s.value

    def note_start(self, sequence: Sequence, now: float) -> None:
        """A turn starts for the first time."""
        self._started[sequence.turn.priority] += 1
        self._waited_s[sequence.turn.priority] += now - sequence.arrival

    def note_expiry(self, sequence: Sequence, now: float) -> None:
        """A turn's deadline passed while it waited."""
        self._expired[sequence.turn.priority] += 1
        self._waited_s[sequence.turn.priority] += now - sequence.arrival

    def note_end(self, sequence: Sequence, now: float) -> None:
        """A turn that ran has ended."""
        if sequence.admitted is not None:
            self._turn_s.add(now - sequence.admitted, 1.0)

    def note_prefill(self, num_tokens: int, seconds: float) -> None:
        """A step with ``num_tokens`` of prefill took ``seconds``."""
        if num_tokens and seconds > 0:
            self._prefill_speed.add(num_tokens, seconds)

    def by_class(self, waiting: WaitingTurns) -> tuple[QueueStats, ...]:
        """In the order of Priority."""
        return tuple(
            QueueStats(
                waiting=waiting.num_by_class[each],
                waiting_tokens=waiting.tokens_by_class[each],
                started=self._started[each],
                expired=self._expired[each],
                waited_s=self._waited_s[each],
            )
            for each in Priority
        )
