"""Notices that the engine hangs: its process is alive and says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

TICKS = 10


class Watchdog:
    """Counts ticks of silence rather than seconds of a clock: while the front itself was stopped (Ctrl-Z, a debugger)
    there were none, so that an engine which was stopped with it gets its time to speak."""

    def __init__(self, timeout_s: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """``timeout_s`` 0: the engine may take any time."""
        self.timeout_s = timeout_s
        self._sleep = sleep
        self._silent_ticks: int | None = None  # None: nothing is expected yet

    def heard(self) -> None:
        """The engine said something, and has to go on doing so."""
        self._silent_ticks = 0

    async def wait_for_silence(self) -> None:
        """Returns when nothing was heard for ``timeout_s`` after the last ``heard``."""
        if not self.timeout_s:
            await asyncio.Event().wait()
        while self._silent_ticks is None or self._silent_ticks < TICKS:
            await self._sleep(self.timeout_s / TICKS)
            if self._silent_ticks is not None:
                self._silent_ticks += 1
