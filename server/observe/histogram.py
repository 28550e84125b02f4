"""Counts of values by size, as Prometheus wants them."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 30.0, 60.0, 120.0)
TOKEN_TIMES = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)


class Histogram:
    """Values in buckets; ``bounds`` are their upper ends, the last bucket has none. For one thread."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        """Note ``value``, ``times`` times."""
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """Upper ends, as text, and how many values were at most that."""
        rows: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            rows.append((bound, float(below)))
        return rows

    def quantile(self, share: float) -> float | None:
        """About the value below which ``share`` of the values are; None before any."""
        wanted = share * self.count
        below = 0
        for index, count in enumerate(self.counts):
            if count and below + count >= wanted:
                low = self.bounds[index - 1] if index else 0.0
                high = self.bounds[index] if index < len(self.bounds) else self.bounds[-1]
                return low + (high - low) * max(0.0, wanted - below) / count
            below += count
        return None
