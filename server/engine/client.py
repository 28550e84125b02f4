"""The front's end of the engine: what the asyncio loop may hold.

The engine is a child process. When it dies, the turns that it ran fail with ``EngineError`` and a new one is started;
sessions are not touched, their tokens are in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncGenerator

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
    EngineReady,
    EngineStats,
    FinishReason,
    FromEngine,
    SubmitTurn,
    TurnOutput,
    TurnOutputs,
)
from .quarantine import Quarantine
from .supervisor import EngineDeath, EngineState, EngineSupervisor, Progress
from .tenant_limits import TenantLimits
from .turn_check import check_turn
from .turn_watch import TurnListener, observed

logger = logging.getLogger(__name__)


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
        self._supervisor = EngineSupervisor(config, on_progress, self._handle, self._note_death)
        self._limits = TenantLimits(limits or LimitsConfig(), time.monotonic)
        self._admission = TurnAdmission(config.max_waiting, config.max_sequences, config.max_queue_s)
        self._turns: dict[str, _InHand] = {}
        self.quarantine = Quarantine(time.monotonic)
        self._cache = CacheCalls()
        self._listener: TurnListener | None = None
        self.stats = EngineStats()

    @property
    def info(self) -> EngineReady:
        """What the engine said when it became ready.

        Raises:
            EngineError: it never was.
        """
        return self._supervisor.info

    @property
    def state(self) -> EngineState:
        """What the engine can do for a new turn."""
        return self._supervisor.state

    @property
    def restarts(self) -> int:
        """How often a new engine took the place of one that died."""
        return self._supervisor.restarts

    @property
    def pid(self) -> int | None:
        """Process id of the engine."""
        child = self._supervisor.child
        return None if child is None else child.pid

    async def start(self) -> EngineReady:
        """Start the engine and wait until its model is loaded.

        Raises:
            EngineError: it cannot start; the message is the engine's own. Or it was closed meanwhile.
        """
        try:
            return await self._supervisor.start()
        except EngineError:
            await self.close()
            raise

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
            child = self._check(turn)
            async with contextlib.aclosing(self._run(turn, child)) as outputs:
                async for output in outputs:
                    yield output

    async def _run(self, turn: SubmitTurn, child: EngineChild) -> AsyncGenerator[TurnOutput, None]:
        self._limits.enter(turn)
        try:
            self._admission.enter(turn, self.stats)
        except CapacityError:
            self._limits.leave(turn, None)
            raise
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
            if not finished and self._supervisor.child is child:
                with contextlib.suppress(EngineError):
                    child.send(AbortTurn(turn.turn_id))

    async def abort(self, turn_id: str) -> None:
        """End a turn within one step; its iterator gets the last output. Unknown ids are ignored."""
        child = self._supervisor.child
        if child is not None and turn_id in self._turns:
            child.send(AbortTurn(turn_id))

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
        return await self._cache.call(self._supervisor.ready_child().send, request, expected)

    async def close(self) -> None:
        """Stop the engine. Open turns fail."""
        await self._supervisor.close()
        self._cache.close(EngineError("the engine is closed"))

    # -- what the supervisor tells --------------------------------------------------------------------------------

    def _handle(self, message: FromEngine) -> None:
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
            case CacheAnswer():
                self._cache.answered(message)
            case CacheEvents():
                self._cache.happened(message)
            case _:
                raise AssertionError(f"{type(message).__name__} is the supervisor's")

    def _note_death(self, death: EngineDeath) -> None:
        """Remember who was there at a crash, and end what waits for the engine."""
        if death.crashed and self._turns and not death.is_wanted:
            turns = [in_hand.turn for in_hand in self._turns.values()]
            if death.failed_step is not None:
                turns = [turn for turn in turns if turn.turn_id in death.failed_step.turn_ids]
            logger.error("the engine crashed (%s): %d turns are under suspicion", death.how, len(turns))
            self.quarantine.crashed(turns)
        why = "the server stopped" if death.is_wanted else "the engine died"
        self._cache.fail(EngineError(f"{why} before it answered", remedy="try again", retry_after_s=2.0))
        for in_hand in self._turns.values():
            in_hand.outputs.put_nowait(
                EngineError(f"{why} during this turn", remedy="send the turn again", retry_after_s=2.0)
            )

    # -- checks ---------------------------------------------------------------------------------------------------

    def _check(self, turn: SubmitTurn) -> EngineChild:
        child = self._supervisor.ready_child()
        check_turn(turn, self.info)
        if turn.turn_id in self._turns:
            raise RequestError(f"turn {turn.turn_id} is running already", field="turn_id", remedy="use a new id")
        return child


def _expired(turn: SubmitTurn) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the turn waited for its start until its deadline of {turn.deadline_s:g} s had passed",
        remedy="allow more time, or send it when less is waiting",
    )
