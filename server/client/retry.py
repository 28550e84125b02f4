"""When and how often a call is sent again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ...sessions.errors import SessileError
from .errors import may_be_sent_again


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Waits as long as the server asks, else longer each time: ``first_delay_s``, doubled up to ``longest_delay_s``.

    A waiting time of one's own is shortened at random by up to a half, so that many clients do not come back at once.
    ``max_attempts`` counts the first one. ``sleep`` and ``random`` are for tests.
    """

    max_attempts: int = 6
    first_delay_s: float = 0.2
    longest_delay_s: float = 5.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = field(default=random.random)

    def delay_s(self, error: SessileError, attempt: int) -> float | None:
        """Seconds to wait after attempt number ``attempt`` (from 1) failed; None: give up."""
        if attempt >= self.max_attempts or not may_be_sent_again(error):
            return None
        if error.retry_after_s is not None:
            return min(error.retry_after_s, self.longest_delay_s)
        longest = min(self.first_delay_s * 2.0 ** (attempt - 1), self.longest_delay_s)
        return longest * (1.0 - 0.5 * self.random())


NO_RETRIES = RetryPolicy(max_attempts=1)
