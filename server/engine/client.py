"""The front's end of the engine: what the asyncio loop may hold.

The engine is a child process. When it dies, the turns that it ran fail with ``EngineError`` and a new one is started;
sessions are not touched, their tokens are in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import logging
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Protocol

import zmq

from ...sessions.errors import CapacityError, DeadlineExceeded, EngineError, RequestError
from .admission import TurnAdmission
from .cache_calls import Answer, CacheCalls
from .cache_messages import (
    CacheAnswer,
    CacheEvents,
    CacheRequest,
    CacheView,
    DescribeCache,
    Done,
    ExportOutcome,
    ExportPath,
    ImportOutcome,
    ImportPath,
    PersistOutcome,
    PersistPath,
    ReleasePath,
    ResumeEstimate,
    ResumePath,
    RetainOutcome,
    RetainPath,
    SupersedePath,
    SuspendOutcome,
    SuspendPath,
)
from .child import EngineChild
from .engine_config import EngineConfig
from .limits_config import LimitsConfig
from .messages import (
    AbortTurn,
    Alive,
    EngineFailed,
    EngineReady,
    EngineStats,
    FinishReason,
    FromEngine,
    LoadProgress,
    Shutdown,
    StepFailed,
    SubmitTurn,
    TurnOutput,
    TurnOutputs,
)
from .quarantine import Quarantine
from .tenant_limits import TenantLimits
from .turn_check import check_turn
from .turn_watch import TurnListener, observed
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


@dataclasses.dataclass(frozen=True, slots=True)
class _InHand:
    """A turn that the engine has, and where its outputs go."""

    turn: SubmitTurn
    outputs: asyncio.Queue[TurnOutput | EngineError] = dataclasses.field(default_factory=asyncio.Queue)


class EngineClient:
    """Starts the engine, sends turns to it and hands out what they produce. One asyncio loop owns it."""

    def __init__(
        self, config: EngineConfig, on_progress: Progress | None = None, limits: LimitsConfig | None = None
    ) -> None:
        self._config = config
        self._on_progress = on_progress
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._child: EngineChild | None = None
        self._limits = TenantLimits(limits or LimitsConfig(), time.monotonic)
        self._admission = TurnAdmission(config.max_waiting, config.max_sequences, config.max_queue_s)
        self._turns: dict[str, _InHand] = {}
        self._failed_step: StepFailed | None = None
        self.quarantine = Quarantine(time.monotonic)
        self._cache = CacheCalls()
        self._listener: TurnListener | None = None
        self._info: EngineReady | None = None
        self._failure: EngineFailed | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.state = EngineState.STARTING
        self.stats = EngineStats()
        self.restarts = 0
        self._closing = asyncio.Event()
        self._watchdog = Watchdog(config.watchdog_s)

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
    def pid(self) -> int | None:
        """Process id of the engine."""
        return None if self._child is None else self._child.pid

    async def start(self) -> EngineReady:
        """Start the engine and wait until its model is loaded.

        Raises:
            EngineError: it cannot start; the message is the engine's own. Or it was closed meanwhile.
        """
        self._supervisor = asyncio.create_task(self._supervise())
        while self.state is EngineState.STARTING:
            self._changed.clear()
            await self._changed.wait()
        if self.state in (EngineState.FAILED, EngineState.CLOSED):
            error = self._unavailable()
            await self.close()
            raise error
        return self.info

    def listen(self, listener: TurnListener) -> None:
        """Tell ``listener`` of all turns from now on."""
        self._listener = listener

    def generate(self, turn: SubmitTurn) -> AsyncGenerator[TurnOutput, None]:
        """Run a turn; the last output has its usage. Closing the iterator early aborts the turn.

        Raises:
            RequestError: the prompt is empty or holds an unknown token id; or this turn made the engine crash before.
            ContextOverflow: the prompt leaves no room for a token.
            CapacityError: the queue of its class is full, or the tenant is at one of its limits.
            DeadlineExceeded: it still waited when its deadline passed.
            EngineError: the engine died, or is not ready.
        """
        return self._generate(turn) if self._listener is None else observed(self._generate, turn, self._listener)

    async def _generate(self, turn: SubmitTurn) -> AsyncGenerator[TurnOutput, None]:
        async with self.quarantine.admitted(turn):
            self._check(turn)
            async with contextlib.aclosing(self._run(turn)) as outputs:
                async for output in outputs:
                    yield output

    async def _run(self, turn: SubmitTurn) -> AsyncGenerator[TurnOutput, None]:
        self._limits.enter(turn)
        try:
            self._admission.enter(turn, self.stats)
        except CapacityError:
            self._limits.leave(turn, None)
            raise
        child = self._child
        assert child is not None
        in_hand = self._turns[turn.turn_id] = _InHand(turn)
        finished, usage = False, None
        try:
            child.send(turn)
            while not finished:
                output = await in_hand.outputs.get()
                if isinstance(output, EngineError):
                    finished = True
                    raise output
                finished, usage = output.finish_reason is not None, output.usage
                if output.finish_reason is FinishReason.EXPIRED:
                    raise _expired(turn)
                if finished:
                    self.quarantine.done(turn)
                yield output
        finally:
            self._turns.pop(turn.turn_id, None)
            self._admission.leave(turn)
            self._limits.leave(turn, usage)
            if not finished and self._child is child:
                with contextlib.suppress(EngineError):
                    child.send(AbortTurn(turn.turn_id))

    async def abort(self, turn_id: str) -> None:
        """End a turn within one step; its iterator gets the last output. Unknown ids are ignored."""
        if self._child is not None and turn_id in self._turns:
            self._child.send(AbortTurn(turn_id))

    # -- the cache ------------------------------------------------------------------------------------------------
    #
    # All of these raise EngineError if the engine is not ready or dies meanwhile, and RequestError, naming the field,
    # for what can never succeed.

    async def retain(self, path: RetainPath) -> RetainOutcome:
        """Keep a session's path as its retention says. What is over a budget is an outcome, no error."""
        path.retention.validate()
        return await self._ask(path, RetainOutcome)

    async def release(self, path: ReleasePath) -> None:
        """End what was retained for an owner. Unknown owners are ignored."""
        await self._ask(path, Done)

    async def supersede(self, path: SupersedePath) -> None:
        """Let the end of a path go first."""
        await self._ask(path, Done)

    async def persist(self, path: PersistPath) -> PersistOutcome:
        """Write a path to the tiers that outlive the process; returns once it is there, or could not be."""
        return await self._ask(path, PersistOutcome)

    async def suspend(self, path: SuspendPath) -> SuspendOutcome:
        """``persist``, and give back the device's blocks that the path shares with nobody."""
        return await self._ask(path, SuspendOutcome)

    async def resume(self, path: ResumePath) -> ResumeEstimate:
        """Say what a path's next turn would have to load and compute, and begin to load it."""
        return await self._ask(path, ResumeEstimate)

    async def export_path(self, path: ExportPath) -> ExportOutcome:
        """Write the KV of a path to a file. What no tier has is left out, with all that follows it."""
        return await self._ask(path, ExportOutcome)

    async def import_path(self, path: ImportPath) -> ImportOutcome:
        """Take the KV of a path from a file. A file of other weights, another layout or with a damaged block is
        refused; the session can go on without it."""
        return await self._ask(path, ImportOutcome)

    async def describe_cache(self, most_nodes: int) -> CacheView:
        """The top of the radix tree, and what the cost model says of the tiers."""
        return await self._ask(DescribeCache(most_nodes=most_nodes), CacheView)

    def cache_events(self) -> AsyncGenerator[CacheEvents, None]:
        """What happens in the cache, from the first ``anext`` on, over restarts of the engine; ends with ``close``."""
        return self._cache.events()

    async def _ask(self, request: CacheRequest, expected: type[Answer]) -> Answer:
        if self.state is not EngineState.READY or self._child is None:
            raise self._unavailable()
        return await self._cache.call(self._child.send, request, expected)

    async def close(self) -> None:
        """Stop the engine. Open turns fail."""
        loads = self.state is not EngineState.READY
        self._closing.set()
        self._set_state(EngineState.CLOSED)
        if self._child is not None:
            with contextlib.suppress(EngineError):
                self._child.send(Shutdown())
            if loads:  # it would read that only afterwards
                self._child.terminate()
        if self._supervisor is not None:
            await self._supervisor
        self._cache.close(EngineError("the engine is closed"))
        self._context.term()

    # -- the supervisor -------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        """Run one engine after another until closed, or until one cannot start at all."""
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
                self._fail_turns()
        return self._info is not before

    async def _watch(self, child: EngineChild, watchdog: Watchdog) -> None:
        await watchdog.wait_for_silence()
        logger.error(
            "the engine said nothing for %.0f s with %d turns in hand: it is killed, after it wrote its stacks",
            watchdog.timeout_s,
            len(self._turns),
        )
        await child.end_hanging()

    def _note_death(self, child: EngineChild) -> None:
        """Remember who was there at a crash, and why an engine that never worked did not."""
        if self._closing.is_set():
            return
        if self._info is None and self._failure is None:
            self._failure = EngineFailed(
                f"the engine ended before it was ready: {child.how_it_ended}", "its log, above, has the cause"
            )
        if child.crashed and self._turns:
            failed = self._failed_step
            turns = [in_hand.turn for in_hand in self._turns.values()]
            if failed is not None:
                turns = [turn for turn in turns if turn.turn_id in failed.turn_ids]
            logger.error("the engine crashed (%s): %d turns are under suspicion", child.how_it_ended, len(turns))
            self.quarantine.crashed(turns)

    def _handle(self, message: FromEngine) -> None:
        if self.state is EngineState.READY:
            self._watchdog.heard()
        match message:
            case TurnOutputs(outputs, stats, admitted):
                self.stats = stats
                if self._listener is not None:
                    for counted in admitted:
                        self._listener.turn_admitted(counted)
                for output in outputs:
                    in_hand = self._turns.get(output.turn_id)
                    if in_hand is not None:
                        in_hand.outputs.put_nowait(output)
            case Alive(stats):
                self.stats = stats
            case StepFailed():
                self._failed_step = message
            case EngineReady():
                self._info, self._failure = message, None
                self._watchdog.heard()
                if not self._closing.is_set():
                    self._set_state(EngineState.READY)
            case CacheAnswer():
                self._cache.answered(message)
            case CacheEvents():
                self._cache.happened(message)
            case LoadProgress(stage, fraction):
                if self._on_progress is not None:
                    self._on_progress(stage, fraction)
            case EngineFailed():
                self._failure = message

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        self._changed.set()

    def _fail_turns(self) -> None:
        why = "the server stopped" if self._closing.is_set() else "the engine died"
        self._cache.fail(EngineError(f"{why} before it answered", remedy="try again", retry_after_s=2.0))
        for in_hand in self._turns.values():
            in_hand.outputs.put_nowait(
                EngineError(f"{why} during this turn", remedy="send the turn again", retry_after_s=2.0)
            )

    # -- checks ---------------------------------------------------------------------------------------------------

    def _unavailable(self) -> EngineError:
        if self._failure is not None:
            retry_after_s = RESTART_DELAYS_S[-1] if self.state is EngineState.RESTARTING else None
            return EngineError(self._failure.error, remedy=self._failure.remedy, retry_after_s=retry_after_s)
        return EngineError(f"the engine is {self.state.value}", remedy="try again", retry_after_s=2.0)

    def _check(self, turn: SubmitTurn) -> None:
        if self.state is not EngineState.READY or self._child is None:
            raise self._unavailable()
        check_turn(turn, self.info)
        if turn.turn_id in self._turns:
            raise RequestError(f"turn {turn.turn_id} is running already", field="turn_id", remedy="use a new id")


def _expired(turn: SubmitTurn) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the turn waited for its start until its deadline of {turn.deadline_s:g} s had passed",
        remedy="allow more time, or send it when less is waiting",
    )
