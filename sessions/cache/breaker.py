"""A circuit breaker: after failures in a row a device or server is left alone for a while, then tried again."""

from __future__ import annotations

import time
from collections.abc import Callable


class CircuitBreaker:
    """Says whether to try. Closed: yes. Open: no, until the pause is over; then one attempt at a time is let through.

    The pause doubles with each failed attempt, from ``pause_s`` to ``longest_pause_s``; a success closes the breaker.
    Not safe for threads: the owner calls it under its own lock.
    """

    def __init__(
        self,
        failures_to_open: int = 3,
        pause_s: float = 1.0,
        longest_pause_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures_to_open = failures_to_open
        self._first_pause_s = pause_s
        self._longest_pause_s = longest_pause_s
        self._clock = clock
        self._failures = 0  # in a row
        self._pause_s = pause_s
        self._closed_again_at: float | None = None  # None: closed
        self.reason = ""  # the failure that opened it; empty when closed

    @property
    def is_open(self) -> bool:
        return self._closed_again_at is not None

    def would_allow(self) -> bool:
        """Whether ``allows`` would answer True now; changes nothing."""
        return self._closed_again_at is None or self._clock() >= self._closed_again_at

    def allows(self) -> bool:
        """Whether to try now. An open breaker whose pause is over answers True once a pause: that is the attempt."""
        if not self.would_allow():
            return False
        if self._closed_again_at is not None:
            self._closed_again_at = self._clock() + self._pause_s  # whoever asks next waits for this attempt's outcome
        return True

    def succeeded(self) -> None:
        """An attempt worked."""
        self._failures = 0
        self._pause_s = self._first_pause_s
        self._closed_again_at = None
        self.reason = ""

    def failed(self, reason: str) -> None:
        """An attempt failed for ``reason``, a short sentence for people."""
        self._failures += 1
        if self._closed_again_at is not None:
            self._pause_s = min(2 * self._pause_s, self._longest_pause_s)
        elif self._failures < self._failures_to_open:
            return
        self._closed_again_at = self._clock() + self._pause_s
        self.reason = reason
