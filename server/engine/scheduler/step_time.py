"""How long a step takes, learnt from the steps that were made.

    seconds = a + b * decode tokens + c * their context + d * prefill tokens + e * pairs of prefill and context tokens

Least squares of the relative error over recent steps, with no negative coefficient, by coordinate descent from the last
solution: 5 coefficients move little from step to step, so two rounds are enough and cost some microseconds.
"""

from __future__ import annotations

import dataclasses
import math

FEATURES = 5
MEMORY = 100.0  # recent steps that count
MOST_SURPRISE = 3.0  # a step that took longer than predicted by this factor counts as if it took this factor
ROUNDS = 2


@dataclasses.dataclass(slots=True)
class StepWork:
    """What the seconds of a step depend on."""

    decode_tokens: int = 0  # drafts included
    decode_context: int = 0  # tokens of context that they read
    prefill_tokens: int = 0
    prefill_pairs: float = 0.0  # of a token and one before it that it looks at

    def add_decode(self, num_tokens: int, context: int) -> None:
        """``num_tokens`` of decoding sequences, drafts included, behind ``context`` others."""
        self.decode_tokens += num_tokens
        self.decode_context += context

    def add_prefill(self, num_tokens: int, context: int) -> None:
        """A chunk of ``num_tokens`` behind ``context`` others."""
        self.prefill_tokens += num_tokens
        self.prefill_pairs += num_tokens * (context + num_tokens / 2)

    @property
    def features(self) -> tuple[float, ...]:
        return (1.0, self.decode_tokens, self.decode_context, self.prefill_tokens, self.prefill_pairs)


class StepTimeModel:
    """Predicts and learns. It knows nothing before the first step: then all takes no time."""

    def __init__(self) -> None:
        self._coefficients = [0.0] * FEATURES
        self._moments = [[0.0] * FEATURES for _ in range(FEATURES)]
        self._targets = [0.0] * FEATURES
        self.num_observed = 0

    @property
    def coefficients(self) -> tuple[float, ...]:
        return tuple(self._coefficients)

    def predict(self, work: StepWork) -> float:
        """Seconds of a step."""
        return sum(c * f for c, f in zip(self._coefficients, work.features, strict=True))

    def prefill_s(self, num_tokens: int, context: int) -> float:
        """What ``num_tokens`` more tokens of prefill behind ``context`` others add to a step, or to several."""
        *_, per_token, per_pair = self._coefficients
        return num_tokens * (per_token + per_pair * (context + num_tokens / 2))

    def most_prefill(self, seconds: float, context: int) -> int:
        """How many tokens of prefill behind ``context`` others fit in ``seconds``."""
        *_, per_token, per_pair = self._coefficients
        if seconds <= 0:
            return 0
        linear = per_token + per_pair * context
        if linear <= 0 and per_pair <= 0:
            return 1 << 30
        # the root of per_pair / 2 * n^2 + linear * n = seconds, in a form that stands for per_pair = 0
        return int(2 * seconds / (linear + math.sqrt(linear * linear + 2 * per_pair * seconds)))

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn that a step took ``seconds``. Values that no clock can show are ignored."""
        if not math.isfinite(seconds) or seconds <= 0:
            return
        self._start(work, seconds)
        expected = self.predict(work) or seconds
        seconds = min(max(seconds, expected / MOST_SURPRISE), expected * MOST_SURPRISE)
        x = [feature / expected for feature in work.features]
        kept, y = 1.0 - 1.0 / MEMORY, seconds / expected
        for i, row in enumerate(self._moments):
            self._targets[i] = self._targets[i] * kept + x[i] * y
            for j in range(FEATURES):
                row[j] = row[j] * kept + x[i] * x[j]
        for _ in range(ROUNDS):
            self._descend()
        self.num_observed += 1

    def _start(self, work: StepWork, seconds: float) -> None:
        """What was never seen before takes its part of what the rest does not explain."""
        features = work.features
        new = [i for i in range(FEATURES) if features[i] and not self._moments[i][i]]
        if not new:
            return
        left = seconds - self.predict(work)
        left = left if left > 0 else 0.1 * seconds
        for i in new:
            self._coefficients[i] = left / len(new) / features[i]

    def _descend(self) -> None:
        """One round of coordinate descent."""
        for i, row in enumerate(self._moments):
            if row[i] > 0:
                error = self._targets[i] - sum(m * c for m, c in zip(row, self._coefficients, strict=True))
                self._coefficients[i] = max(0.0, self._coefficients[i] + error / row[i])
