"""Time that a test sets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SetClock:
    """Seconds that stand still until they are moved."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now
