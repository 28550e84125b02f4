"""From a counterfactual loss to a severity, judged for the cause and not for each occurrence."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .findings import Severity


class Recurrence(enum.Enum):
    """How often a cause strikes; the rarer, the lower its severity."""

    EACH_REQUEST = "each request"
    NOW_AND_THEN = "now and then"  # once a day, once a machine, at a deliberate switch, each time a list grows


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Shares are of prompt tokens, over all pairs of a cause; tokens are for one request."""

    error_share: float = 0.20
    error_tokens: int = 1000
    warning_share: float = 0.02


@dataclass(slots=True)
class CauseLoss:
    """Losses of one cause, summed over its occurrences."""

    lost_tokens: int = 0
    prompt_tokens: int = 0
    worst_tokens: int = 0
    occurrences: int = 0

    def add(self, lost_tokens: int, prompt_tokens: int) -> None:
        """Count one occurrence."""
        self.lost_tokens += lost_tokens
        self.prompt_tokens += prompt_tokens
        self.worst_tokens = max(self.worst_tokens, lost_tokens)
        self.occurrences += 1

    @property
    def share(self) -> float:
        """Lost part of all prompt tokens of the occurrences."""
        return self.lost_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def judge(loss: CauseLoss, recurrence: Recurrence, thresholds: Thresholds) -> Severity:
    """The severity of a cause."""
    if loss.share >= thresholds.error_share or loss.worst_tokens >= thresholds.error_tokens:
        severity = Severity.ERROR
    elif loss.share >= thresholds.warning_share:
        severity = Severity.WARNING
    else:
        severity = Severity.INFO
    if recurrence is Recurrence.NOW_AND_THEN:
        severity = min(severity, Severity.WARNING)
    return severity
