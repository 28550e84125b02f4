"""Signals: the first drains, the second cancels."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from sessile.server.lifecycle import Lifecycle
from sessile.sessions.errors import Draining


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_drains_the_second_cancels(number: signal.Signals) -> None:
    lifecycle = Lifecycle()
    lifecycle.install_signals()
    loop = asyncio.get_running_loop()
    try:
        lifecycle.check_admission()
        assert not lifecycle.draining
        os.kill(os.getpid(), number)
        await asyncio.wait_for(lifecycle.stopped(), 5)
        assert lifecycle.draining
        with pytest.raises(Draining) as caught:
            lifecycle.check_admission()
        assert caught.value.retry_after_s
        cancelled = asyncio.ensure_future(lifecycle.cancelled())
        await asyncio.sleep(0)
        assert not cancelled.done()
        os.kill(os.getpid(), number)
        await asyncio.wait_for(cancelled, 5)
    finally:
        for installed in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(installed)
