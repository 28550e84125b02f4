"""How much prefill a step may do while others decode: no running stream is to wait longer than ``max_stall_ms``.

A stream's next token comes at the end of the step, so the bound is on the step's predicted seconds, all chunks
together. Predictions are off by some factor: the bound aims below ``max_stall_ms`` by the factor that all but one in a
hundred steps stayed within. Where decoding alone takes as long, ``LEAST_PREFILL`` tokens a step go on all the same:
prompts do not starve.
"""

from __future__ import annotations

import math

from .step_time import StepTimeModel, StepWork

LEAST_PREFILL = 16  # tokens
SHARE_BEYOND = 0.25
WITHIN = 0.99  # of the steps stay within the bound
FIRST_MARGIN = 1.1
MARGIN_STEP = 0.05
WIDEST_MARGIN = 2.0


class StallBound:
    """Says how many tokens fit, and learns by how much predictions are off."""

    def __init__(self, model: StepTimeModel, max_stall_s: float, most_tokens: int) -> None:
        """``max_stall_s`` infinite: no bound in time; ``most_tokens``: a bound of prefill tokens beside it."""
        self._model = model
        self._max_stall_s = max_stall_s
        self._most_tokens = most_tokens
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
        aim_s = self._max_stall_s / self.margin
        if decode_s < aim_s:
            return aim_s
        beyond_s = decode_s * (1 + SHARE_BEYOND)
        return beyond_s if decode_s >= self._max_stall_s else min(beyond_s, self._max_stall_s)

    def observe(self, work: StepWork, predicted_s: float, seconds: float) -> None:
        """A step of ``work`` took ``seconds``; ``predicted_s`` was said before."""
        if not (work.decode_tokens and work.prefill_tokens and predicted_s > 0):
            return
        if seconds > predicted_s * self.margin:
            self.margin = min(WIDEST_MARGIN, self.margin + MARGIN_STEP * WITHIN)
        else:
            self.margin = max(1.0, self.margin - MARGIN_STEP * (1 - WITHIN))
