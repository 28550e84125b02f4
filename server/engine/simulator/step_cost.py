"""What a step costs in the simulated world."""

from __future__ import annotations

import dataclasses
import random

from ..scheduler.step_time import StepWork


@dataclasses.dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds a step, a decoded token, a token of its context, a prefill token, and a pair of prefill and context
    token.

    ``error``: each step's true seconds are off by a random factor between 1 - error and 1 + error.
    """

    step: float
    decode_token: float
    decode_context: float
    prefill_token: float
    prefill_pair: float
    error: float = 0.0

    def seconds(self, work: StepWork, chance: random.Random) -> float:
        """Of one step."""
        coefficients = (self.step, self.decode_token, self.decode_context, self.prefill_token, self.prefill_pair)
        exact = sum(c * f for c, f in zip(coefficients, work.features, strict=True))
        return exact * (1.0 + self.error * (2.0 * chance.random() - 1.0))


# two cores and a 135M model, 4-bit weights: 800 tokens of prefill a second, 15 ms for the first decoded token
CPU = StepCost(step=0.006, decode_token=0.003, decode_context=2.6e-6, prefill_token=0.0009, prefill_pair=2.5e-7)
# a data-centre GPU and an 8B model: 40,000 tokens of prefill a second, 12 ms a decode step
GPU = StepCost(step=0.010, decode_token=3e-5, decode_context=4e-8, prefill_token=2.5e-5, prefill_pair=1e-9)
