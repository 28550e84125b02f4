"""Which turns the engine's queue takes: the front's side of it, since a refusal should not wait for a step.

Each class has a queue of its own, so batch work never takes an interactive turn's place. A full one still takes a
turn of a tenant that has none in it, an eighth more in all: a tenant with many turns does not shut the others out.
Whoever would wait too long for an interactive turn is told at once, and when to come again: what is admitted under any
load is answered within a bounded time, and nothing is computed for those who have given up.
"""

from __future__ import annotations

import collections

from ...sessions.errors import CapacityError
from .messages import EngineStats, Priority, QueueStats, SubmitTurn

LEAST_RETRY_S = 0.5
MOST_RETRY_S = 300.0
TOKENS_PER_S = 1000.0  # before anything was measured
EXTRA_PART = 8  # of a queue: one part more for tenants that have no turn in it


class TurnAdmission:
    """Counts open turns, running or waiting, by class and tenant."""

    def __init__(self, max_open: int, max_sequences: int, max_queue_s: float = 0.0) -> None:
        """``max_open``: turns of a class; ``max_sequences``: turns that run at once; ``max_queue_s``: how long an
        interactive turn may be expected to wait, 0: any time."""
        self._max_open = max_open
        self._max_queue_s = max_queue_s
        self._max_sequences = max_sequences
        self._open: dict[Priority, collections.Counter[str]] = {each: collections.Counter() for each in Priority}
        self._num_open = dict.fromkeys(Priority, 0)

    def enter(self, turn: SubmitTurn, stats: EngineStats) -> None:
        """Count ``turn`` in.

        Raises:
            CapacityError: its class's queue is full, or too long; ``retry_after_s`` is when a place is expected.
        """
        self._require_short_queue(turn, stats)
        num_open, tenants = self._num_open[turn.priority], self._open[turn.priority]
        extra = 0 if tenants[turn.tenant] else self._max_open // EXTRA_PART
        if num_open >= self._max_open + extra:
            seconds = retry_after_s(turn.priority, stats, self._max_sequences)
            raise _refusal(
                f"the queue is full: {num_open} {turn.priority.name.lower()} turns are running or waiting", seconds
            )
        tenants[turn.tenant] += 1
        self._num_open[turn.priority] += 1

    def _require_short_queue(self, turn: SubmitTurn, stats: EngineStats) -> None:
        """A tenant's first turn does not stand behind the others' (their shares are fair): it is always taken."""
        if (
            not self._max_queue_s
            or turn.priority is not Priority.INTERACTIVE
            or not self._open[turn.priority][turn.tenant]
        ):
            return
        seconds = expected_wait_s(self._num_open[turn.priority], stats, self._max_sequences)
        if seconds > self._max_queue_s:
            raise _refusal(
                f"the queue is too long: a turn would wait {seconds:.0f} s, and {self._max_queue_s:g} s is the most",
                _bounded(seconds - self._max_queue_s),
            )

    def leave(self, turn: SubmitTurn) -> None:
        """Count ``turn`` out: it has ended."""
        tenants = self._open[turn.priority]
        self._num_open[turn.priority] -= 1
        tenants[turn.tenant] -= 1
        if not tenants[turn.tenant]:
            del tenants[turn.tenant]


def expected_wait_s(num_open: int, stats: EngineStats, max_sequences: int) -> float:
    """How long one more interactive turn would wait behind ``num_open``, as the last turns went.

    Places come free once a mean turn's seconds, all of them; prompts that wait are computed at the speed of prefill.
    """
    waiting = max(0, num_open + 1 - max_sequences)
    if not waiting:
        return 0.0
    tokens = stats.queues[Priority.INTERACTIVE].waiting_tokens if stats.queues else 0
    compute_s = tokens / stats.prefill_tokens_per_s if stats.prefill_tokens_per_s else 0.0
    return max(waiting * stats.turn_s / max_sequences, compute_s)


def retry_after_s(priority: Priority, stats: EngineStats, max_sequences: int) -> float:
    """When one more turn of ``priority`` has started, as predicted from the queues' work and the measured speed.

    What is in front of it are the turns of more urgent classes and one of its own. Their prompts take their tokens at
    the speed of prefill; their starts take a place each, and places come free once a mean turn's seconds, all of them.
    The slower of the two counts.
    """
    queues = stats.queues or tuple(QueueStats() for _ in Priority)
    own = queues[priority]
    own_tokens = own.waiting_tokens / own.waiting if own.waiting else 0.0
    tokens = own_tokens + sum(queues[each].waiting_tokens for each in Priority if each < priority)
    turns = 1 + sum(queues[each].waiting for each in Priority if each < priority)
    compute_s = tokens / (stats.prefill_tokens_per_s or TOKENS_PER_S)
    places_s = turns * stats.turn_s / max_sequences
    return _bounded(max(compute_s, places_s))


def _bounded(seconds: float) -> float:
    return min(max(seconds, LEAST_RETRY_S), MOST_RETRY_S)


def _refusal(why: str, seconds: float) -> CapacityError:
    return CapacityError(why, remedy=f"try again in {seconds:.0f} s or later", retry_after_s=seconds)
