"""A server's process: started with stated flags, waited for until it is ready, stopped at the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from ..errors import TargetError


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What to start. ``ready_url`` answers 200 when the server takes turns; ``install`` brings what it is made of."""

    name: str
    command: tuple[str, ...]
    ready_url: str
    address: str
    log: Path
    start_timeout_s: float = 600.0
    install: str | None = None


class ServerProcess:
    """Owns one server. Its output goes to ``plan.log``."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.plan = plan
        self.start_s: float | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process's id. Raises TargetError before the start."""
        if self._process is None:
            raise TargetError(f"{self.plan.name} has not been started")
        return self._process.pid

    async def start(self) -> None:
        """Start, and return when it is ready. Raises TargetError, with the end of its output, when it is not."""
        began = time.monotonic()
        try:
            self._process = await self._started()
        except OSError as error:
            raise TargetError(f"{self.plan.name} cannot be started: {error}", remedy=self.plan.install) from None
        try:
            await self._until_ready(began)
        except BaseException:
            await self.stop()
            raise
        self.start_s = time.monotonic() - began

    async def stop(self) -> None:
        """Ask it to end, wait 15 seconds, then kill it and all that it started. Cancelled: that is killed at once."""
        process = self._process
        if process is None:
            return
        self._process = None
        try:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), 15)
        finally:
            _kill_group(process.pid)
            await process.wait()

    async def _started(self) -> asyncio.subprocess.Process:
        """In a session of its own: Ctrl-C is for the harness, which stops the server when its record is written."""
        self.plan.log.parent.mkdir(parents=True, exist_ok=True)
        with self.plan.log.open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *self.plan.command, stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )

    async def _until_ready(self, began: float) -> None:
        assert self._process is not None
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
            while True:
                if self._process.returncode is not None:
                    code = self._process.returncode
                    said = self._tail()
                    lacks = self.plan.install if "No module named" in said else None
                    raise TargetError(f"{self.plan.name} ended with {code} while starting:\n{said}", remedy=lacks)
                if await _is_ready(http, self.plan.ready_url):
                    return
                if time.monotonic() - began > self.plan.start_timeout_s:
                    raise TargetError(
                        f"{self.plan.name} was not ready in {self.plan.start_timeout_s:g} s:\n{self._tail()}",
                        remedy="give it more: --start-timeout SECONDS",
                    )
                await asyncio.sleep(0.05)

    def _tail(self) -> str:
        return "\n".join(self.plan.log.read_text(errors="replace").splitlines()[-15:])


def free_port() -> int:
    """A port of the loopback interface on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _is_ready(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
