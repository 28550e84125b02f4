"""One engine process and the two queues to it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from ...sessions.errors import EngineError
from .engine_config import EngineConfig
from .messages import FromEngine, ToEngine

SHUTDOWN_GRACE_S = 5.0
LAST_WORDS_S = 0.05  # for what a process that has ended sent before
STACKS_S = 1.0  # for a hanging process to write where it is

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class EngineChild:
    """Starts the engine's process, and tells how it ended.

    The sockets are plain ones and the loop watches the receiver's file descriptor: for each message that costs half
    of what ``zmq.asyncio`` does.
    """

    def __init__(self, config: EngineConfig, folder: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._config = config
        self._to_engine = f"ipc://{folder}/to-engine"
        self._from_engine = f"ipc://{folder}/from-engine"
        self._sender = context.socket(zmq.PUSH)
        self._sender.bind(self._to_engine)
        self._receiver = context.socket(zmq.PULL)
        self._receiver.bind(self._from_engine)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._process: asyncio.subprocess.Process | None = None
        self._hung = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def crashed(self) -> bool:
        """It ended, or had to be ended, by its own fault: not because somebody stopped or killed it."""
        status = None if self._process is None else self._process.returncode
        return self._hung or (status not in (None, 0) and -(status or 0) not in _FROM_OUTSIDE)

    @property
    def how_it_ended(self) -> str:
        """In words; empty while it runs."""
        status = None if self._process is None else self._process.returncode
        if status is None:
            return ""
        if self._hung:
            return "it hung and was killed"
        return f"exit status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"

    async def start(self) -> None:
        """Raises OSError if no process can be started."""
        config = msgspec.json.encode(self._config).decode()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", f"{__package__}.process", config, self._to_engine, self._from_engine
        )

    def send(self, message: ToEngine) -> None:
        """Queue a message. Raises EngineError if the engine does not listen, or no more."""
        try:
            self._sender.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again as error:
            raise EngineError("the engine does not listen", remedy="try again", retry_after_s=2.0) from error

    async def listen(self, on_message: Callable[[FromEngine], None]) -> None:
        """Hand on what the engine says, until its process has ended."""
        assert self._process is not None
        loop = asyncio.get_running_loop()
        descriptor = self._receiver.fileno()
        loop.add_reader(descriptor, self._take, on_message)
        try:
            self._take(on_message)
            await self._process.wait()
            await asyncio.sleep(LAST_WORDS_S)
            self._take(on_message)
        finally:
            loop.remove_reader(descriptor)

    def _take(self, on_message: Callable[[FromEngine], None]) -> None:
        """Hand on all that has arrived: the descriptor tells of a change once, not of each message."""
        while int(self._receiver.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            on_message(self._decoder.decode(self._receiver.recv(zmq.NOBLOCK)))

    def terminate(self) -> None:
        """End the process without asking."""
        if self._runs:
            assert self._process is not None
            self._process.terminate()

    async def end_hanging(self) -> None:
        """Let the process write the stacks of its threads to its standard error, then kill it."""
        if self._process is None or not self._runs:
            return
        self._hung = True
        self._process.send_signal(signal.SIGUSR1)
        await asyncio.sleep(STACKS_S)
        if self._runs:
            self._process.kill()

    async def stop(self) -> None:
        """End the process: asked first, killed after a grace period. Closes the queues."""
        if self._process is not None and self._runs:
            try:
                await asyncio.wait_for(self._process.wait(), SHUTDOWN_GRACE_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        self._sender.close(linger=0)
        self._receiver.close(linger=0)

    @property
    def _runs(self) -> bool:
        return self._process is not None and self._process.returncode is None
