"""When a null server sends what: by the clock, and not by the length of sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds to the first piece, and between pieces."""

    ttft_s: float
    tpot_s: float

    async def pieces(self, received: float, tokens: int) -> AsyncIterator[str]:
        """An answer's pieces, each when it is due, which says the time at which it is sent.

        The first one says before that when the request was ``received``. All in seconds of the system's monotonic
        clock, which the processes of a machine share.
        """
        due = received + self.ttft_s
        for number in range(tokens):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            stamp = repr(time.perf_counter())
            yield stamp if number else f"{received!r},{stamp}"
            due += self.tpot_s


def told_stamps(pieces: Sequence[str]) -> tuple[float, list[float]]:
    """What the pieces of an answer say: when its request was received, and when each of them was sent."""
    received, first = (float(stamp) for stamp in pieces[0].split(","))
    return received, [first, *(float(stamp) for stamp in pieces[1:])]
