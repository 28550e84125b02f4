"""What Ctrl-C, SIGTERM and a closed terminal do while a command runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Owns the handlers of the running loop. A signal cancels the task that entered, so that what it started is
    stopped on the way out; within ``stopping`` the first one sets an event instead, and the next one cancels."""

    def __init__(self) -> None:
        self._stop: asyncio.Event | None = None
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> Signals:
        loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        for number in HEARD:
            loop.add_signal_handler(number, self._heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in HEARD:
            loop.remove_signal_handler(number)

    @contextmanager
    def stopping(self) -> Iterator[asyncio.Event]:
        """The event that the first signal sets while inside."""
        self._stop = asyncio.Event()
        try:
            yield self._stop
        finally:
            self._stop = None

    def _heard(self) -> None:
        if self._stop is not None and not self._stop.is_set():
            self._stop.set()
        elif self._task is not None:
            self._task.cancel()
