"""How many tokens of each guess to verify in a step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .step_cost import StepCost

_WORTH_IT = 1.01  # less gain than this is noise


class DraftLength:
    """Chooses lengths so that the step gives the most tokens a second.

    A step of S turns and R drafts is expected to give S + (the drafts' probabilities) tokens in cost(S + R) seconds.
    The likeliest drafts are worth a row first, and since each probability is that of all drafts before it too, they
    are always the front of each guess. So all that is to find is R.
    """

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost

    def choose(self, probabilities: npt.NDArray[np.float64], turns: int, budget: int) -> npt.NDArray[np.int64]:
        """Drafts for each row of ``probabilities`` [guesses, longest], which fall along a row and are 0 behind a
        guess's end. ``turns`` take part in the step, ``budget`` drafts at most."""
        curve = self._cost.curve
        flat = probabilities.ravel()
        order = np.argsort(-flat, kind="stable")  # of equal ones in a row, the one before stays before
        most = min(budget, len(curve) - 1 - turns, int(np.count_nonzero(flat)))
        if most <= 0:
            return np.zeros(len(probabilities), dtype=np.int64)
        tokens = turns + np.cumsum(flat[order[:most]])
        rates = tokens / curve[turns + 1 : turns + 1 + most]
        best = int(rates.argmax())
        if rates[best] < _WORTH_IT * turns / curve[turns]:
            return np.zeros(len(probabilities), dtype=np.int64)
        return np.bincount(order[: best + 1] // probabilities.shape[1], minlength=len(probabilities))
