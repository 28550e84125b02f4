"""When an engine counts as hanging."""

from __future__ import annotations

import asyncio

import pytest

from sessile.server.engine.watchdog import TICKS, Watchdog

pytestmark = pytest.mark.asyncio


class Ticks:
    """A sleep that the test lets pass, one at a time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._passed: asyncio.Queue[None] = asyncio.Queue()

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await self._passed.get()

    async def let_pass(self, count: int) -> None:
        for _ in range(count):
            self._passed.put_nowait(None)
            for _ in range(3):
                await asyncio.sleep(0)


async def test_an_engine_that_spoke_and_is_silent_for_the_whole_time_hangs() -> None:
    ticks = Ticks()
    watchdog = Watchdog(30.0, ticks)
    silence = asyncio.create_task(watchdog.wait_for_silence())
    await ticks.let_pass(5 * TICKS)
    assert not silence.done(), "it loads: nothing is expected yet"
    watchdog.heard()
    await ticks.let_pass(TICKS - 1)
    watchdog.heard()
    await ticks.let_pass(TICKS - 1)
    assert not silence.done()
    await ticks.let_pass(1)
    assert silence.done()
    assert set(ticks.seconds) == {30.0 / TICKS}


async def test_zero_never_ends() -> None:
    ticks = Ticks()
    watchdog = Watchdog(0.0, ticks)
    silence = asyncio.create_task(watchdog.wait_for_silence())
    watchdog.heard()
    await asyncio.sleep(0)
    assert not silence.done() and not ticks.seconds
    silence.cancel()
