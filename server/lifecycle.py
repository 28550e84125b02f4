"""The life of a server: it takes work, drains after the first signal, and gives up waiting after the second."""

from __future__ import annotations

import asyncio
import logging
import signal

from ..sessions.errors import Draining

logger = logging.getLogger(__name__)


class Lifecycle:
    """Who stops the server, and how far it has come. One asyncio loop owns it."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self._cancelled = asyncio.Event()

    @property
    def draining(self) -> bool:
        """Whether new work is refused."""
        return self._stopping.is_set()

    def install_signals(self) -> None:
        """SIGTERM and SIGINT stop the server; the second one does not wait for running turns."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    def stop(self) -> None:
        """Begin to drain; at the second call, stop waiting."""
        if self._stopping.is_set():
            logger.warning("stopping now: running turns are cancelled")
            self._cancelled.set()
        else:
            logger.info("draining: running turns finish, new ones are refused; another signal cancels them")
            self._stopping.set()

    def check_admission(self) -> None:
        """Raise Draining once the server stops."""
        if self._stopping.is_set():
            raise Draining("the server is shutting down", remedy="send it again later", retry_after_s=5.0)

    async def stopped(self) -> None:
        """Wait for the first signal."""
        await self._stopping.wait()

    async def cancelled(self) -> None:
        """Wait for the second signal."""
        await self._cancelled.wait()
