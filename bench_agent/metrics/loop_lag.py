"""How late the harness's own event loop runs: what it adds to every stamp, measured while the load runs."""

from __future__ import annotations

import asyncio
import time

import msgspec
import numpy as np

_PERIOD_S = 0.005


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds by which a timer fired late; a stamp is late by as much."""

    samples: int
    p50_s: float
    p99_s: float
    worst_s: float


class LagMeter:
    """Samples the running loop between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        self._task = asyncio.create_task(self._sample())

    async def stop(self) -> Lag | None:
        """End; None when nothing was sampled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if not self._late:
            return None
        p50, p99 = np.percentile(self._late, [50, 99])
        return Lag(samples=len(self._late), p50_s=float(p50), p99_s=float(p99), worst_s=max(self._late))

    async def _sample(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_PERIOD_S)
            self._late.append(max(0.0, time.perf_counter() - before - _PERIOD_S))
