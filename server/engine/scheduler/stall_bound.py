"""How much prefill a step may do while others decode: no running stream is to wait longer than ``max_stall_ms``.

A stream's next token comes at the end of the step, so the bound is on the step's predicted seconds, all chunks
together. Predictions are off by some factor: the bound aims below ``max_stall_ms`` by the factor that all but the worst
of the last steps stayed within. Where decoding alone takes as long, ``LEAST_PREFILL`` tokens a step go on all the same:
prompts do not starve.
"""

from __future__ import annotations

import collections
import heapq
import math

from .step_time import StepTimeModel, StepWork

LEAST_PREFILL = 16  # tokens
SHARE_BEYOND = 0.25
AIM = 0.97  # of the bound, on top of the margin
STEPS = 200  # the last ones; by the second worst of them, one in a hundred is to be beyond the margin
FIRST_MARGIN = 1.25  # believed
FIRST_STEPS = 50  # for so many steps
WIDEST_MARGIN = 1.6  # what took longer than that was somebody else's doing, and no chunk is small enough for it
TELLING = 0.5  # of the bound: whether a shorter step took longer than predicted matters to nobody


class StallBound:
    """Says how many tokens fit, and learns by how much predictions are off."""

    def __init__(self, model: StepTimeModel, max_stall_s: float, most_tokens: int) -> None:
        """``max_stall_s`` infinite: no bound in time; ``most_tokens``: a bound of prefill tokens beside it."""
        self._model = model
        self._max_stall_s = max_stall_s
        self._most_tokens = most_tokens
        believed = [FIRST_MARGIN] * 2
        self._off_by = collections.deque([*[1.0] * (FIRST_STEPS - 2), *believed, *[1.0] * (STEPS - FIRST_STEPS)], STEPS)
        self.margin = FIRST_MARGIN

    def most_prefill(self, work: StepWork, context: int) -> int:
        """How many tokens of prefill behind ``context`` others may be added to ``work``, a step in which somebody
        decodes."""
        room = self._most_tokens - work.prefill_tokens
        if self._max_stall_s == math.inf:
            return room
        fits = self._model.most_prefill(self._aim_s(work) - self._model.predict(work), context)
        return min(room, max(fits, LEAST_PREFILL - work.prefill_tokens))

    def _aim_s(self, work: StepWork) -> float:
        """How long the step may be predicted to take."""
        decode_s = self._model.predict(StepWork(work.decode_tokens, work.decode_context))
        aim_s = AIM * self._max_stall_s / self.margin
        if decode_s < aim_s:
            return aim_s
        beyond_s = decode_s * (1 + SHARE_BEYOND)
        return beyond_s if decode_s >= self._max_stall_s else min(beyond_s, self._max_stall_s)

    def observe(self, work: StepWork, predicted_s: float, seconds: float) -> None:
        """A step of ``work`` took ``seconds``; ``predicted_s`` was said before."""
        if work.decode_tokens and work.prefill_tokens and predicted_s * self.margin > TELLING * self._max_stall_s:
            self._off_by.append(seconds / predicted_s)
            second_worst = heapq.nlargest(2, self._off_by)[1]
            self.margin = min(max(second_worst, 1.0), WIDEST_MARGIN)
