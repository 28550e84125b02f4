"""One engine process after another: started, watched, and replaced when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import zmq

from ...sessions.errors import EngineError
from .child import EngineChild
from .engine_config import EngineConfig
from .messages import EngineFailed, EngineReady, FromEngine, LoadProgress, Shutdown, StepFailed
from .watchdog import Watchdog

logger = logging.getLogger(__name__)

RESTART_DELAYS_S = (0.0, 1.0, 5.0, 15.0)  # before the first, second, … restart in a row


class EngineState(enum.Enum):
    """What the engine can do for a new turn."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    CLOSED = "closed"


class Progress(Protocol):
    """Told what the engine is doing while it starts; ``fraction`` runs from 0 to 1 within a stage."""

    def __call__(self, stage: str, fraction: float) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineDeath:
    """How a process ended. ``crashed``: by its own fault; ``failed_step``: in this step, if it said so;
    ``is_wanted``: the supervisor is being closed."""

    crashed: bool
    how: str
    failed_step: StepFailed | None
    is_wanted: bool


class EngineSupervisor:
    """Runs engines until closed, or until one cannot start at all. One asyncio loop owns it.

    ``on_message`` gets what the engine says, but for what concerns its own life; ``on_death`` is told when a process
    has ended, and nothing more will come from it.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_progress: Progress | None,
        on_message: Callable[[FromEngine], None],
        on_death: Callable[[EngineDeath], None],
    ) -> None:
        self._config = config
        self._on_progress = on_progress
        self._on_message = on_message
        self._on_death = on_death
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._child: EngineChild | None = None
        self._failed_step: StepFailed | None = None
        self._info: EngineReady | None = None
        self._failure: EngineFailed | None = None
        self._running: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._watchdog = Watchdog(config.watchdog_s)
        self.state = EngineState.STARTING
        self.restarts = 0

    @property
    def info(self) -> EngineReady:
        """What the engine said when it became ready.

        Raises:
            EngineError: it never was.
        """
        if self._info is None:
            raise self._unavailable()
        return self._info

    @property
    def child(self) -> EngineChild | None:
        """The present process, if there is one; whether it is ready, ``state`` says."""
        return self._child

    def ready_child(self) -> EngineChild:
        """The present process, which takes messages. Raises EngineError while there is none."""
        if self.state is not EngineState.READY or self._child is None:
            raise self._unavailable()
        return self._child

    async def start(self) -> EngineReady:
        """Start the engine and wait until its model is loaded.

        Raises:
            EngineError: it cannot start; the message is the engine's own. Or it was closed meanwhile.
        """
        self._running = asyncio.create_task(self._supervise())
        while self.state is EngineState.STARTING:
            self._changed.clear()
            await self._changed.wait()
        if self.state in (EngineState.FAILED, EngineState.CLOSED):
            raise self._unavailable()
        return self.info

    async def close(self) -> None:
        """Stop the engine: no other one follows."""
        loads = self.state is not EngineState.READY
        self._closing.set()
        self._set_state(EngineState.CLOSED)
        if self._child is not None:
            with contextlib.suppress(EngineError):
                self._child.send(Shutdown())
            if loads:  # it would read that only afterwards
                self._child.terminate()
        if self._running is not None:
            await self._running
        self._context.term()

    async def _supervise(self) -> None:
        failures_in_a_row = 0
        while True:
            became_ready = await self._run_child()
            if self._closing.is_set():
                break
            if self._info is None:  # it never worked: trying again would not help
                self._set_state(EngineState.FAILED)
                break
            failures_in_a_row = 1 if became_ready else failures_in_a_row + 1
            self._set_state(EngineState.RESTARTING)
            self.restarts += 1
            delay = RESTART_DELAYS_S[min(failures_in_a_row, len(RESTART_DELAYS_S)) - 1]
            logger.error("the engine died; a new one starts %s", f"in {delay:.0f} s" if delay else "at once")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), delay)
                break

    async def _run_child(self) -> bool:
        """One engine's life; True if it became ready."""
        before = self._info
        with tempfile.TemporaryDirectory(prefix="sessile-") as folder:
            child = self._child = EngineChild(self._config, Path(folder), self._context)
            self._failed_step = None
            self._watchdog = Watchdog(self._config.watchdog_s)
            watching = asyncio.create_task(self._watch(child, self._watchdog))
            try:
                await child.start()
                await child.listen(self._handle)
            except OSError as error:
                self._failure = EngineFailed(f"the engine's process cannot be started: {error}")
            finally:
                watching.cancel()
                self._child = None
                if self.state is EngineState.READY:
                    self._set_state(EngineState.RESTARTING)
                await child.stop()
                self._note_death(child)
        return self._info is not before

    async def _watch(self, child: EngineChild, watchdog: Watchdog) -> None:
        await watchdog.wait_for_silence()
        logger.error("the engine said nothing for %.0f s: it is killed, after it wrote its stacks", watchdog.timeout_s)
        await child.end_hanging()

    def _note_death(self, child: EngineChild) -> None:
        """Remember why an engine that never worked did not, and pass on that one is gone."""
        is_wanted = self._closing.is_set()
        if not is_wanted and self._info is None and self._failure is None:
            self._failure = EngineFailed(
                f"the engine ended before it was ready: {child.how_it_ended}", "its log, above, has the cause"
            )
        self._on_death(EngineDeath(child.crashed, child.how_it_ended, self._failed_step, is_wanted))

    def _handle(self, message: FromEngine) -> None:
        if self.state is EngineState.READY:
            self._watchdog.heard()
        match message:
            case StepFailed():
                self._failed_step = message
            case EngineReady():
                self._info, self._failure = message, None
                self._watchdog.heard()
                if not self._closing.is_set():
                    self._set_state(EngineState.READY)
            case LoadProgress(stage, fraction):
                if self._on_progress is not None:
                    self._on_progress(stage, fraction)
            case EngineFailed():
                self._failure = message
            case _:
                self._on_message(message)

    def _unavailable(self) -> EngineError:
        if self._failure is not None:
            retry_after_s = RESTART_DELAYS_S[-1] if self.state is EngineState.RESTARTING else None
            return EngineError(self._failure.error, remedy=self._failure.remedy, retry_after_s=retry_after_s)
        return EngineError(f"the engine is {self.state.value}", remedy="try again", retry_after_s=2.0)

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        self._changed.set()
