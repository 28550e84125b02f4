"""What the engine's cache is told of sessions as turns come and go: who returns when, and what is no longer needed.

Nothing here is needed for a right answer, and nobody waits for it: it goes to the engine behind the turn that it
follows, and if the engine fails, the next turn computes what was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from ...server.engine.cache_messages import PersistPath, ReleasePath, RetainPath, SupersedePath
from ...server.engine.messages import EngineReady
from ..cache.lifetime import Lifetime
from ..cache.retention import Retention, Verdict
from ..errors import EngineError, SessileError
from ..keeping import Persistence, PersistencePolicy, is_tool_name
from ..messages import Role
from ..session import Session, SessionLog, SessionState
from ..store import SessionStore, StoredLatency
from .idle import IdleSessions
from .ports import Clock, EngineCache, SteadyClock
from .requests import MessagesInput, ToolResultInput, TurnInput
from .shared_log import tokens_shared
from .tool_latency import LatencySketch, ToolLatencies

logger = logging.getLogger(__name__)

_LATENCIES = "/tool latencies"  # no session's id

MAX_WAITS = 100_000  # sessions whose last turn's end is remembered


class _Wait(msgspec.Struct, frozen=True):
    """A session that may be waiting for tools: since when (steady), and for which calls (id → tool's name)."""

    since: float
    calls: Mapping[str, str]


class KvCare:
    """One for each manager. ``policy`` is the server's, for sessions that have none of their own."""

    def __init__(
        self,
        engine: EngineCache,
        store: SessionStore,
        clock: Clock,
        policy: PersistencePolicy,
        steady: SteadyClock,
    ) -> None:
        self._engine = engine
        self._store = store
        self._clock = clock
        self._steady = steady
        self.policy = policy
        self.latencies = ToolLatencies()
        self.idle = IdleSessions(steady, self._persist)
        self._waits: OrderedDict[str, _Wait] = OrderedDict()
        self._told: dict[str, EngineReady] = {}  # whose retention an engine knows, and which engine
        self._last: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # these, and those that they wait for

    # -- as turns come and go -------------------------------------------------------------------------------------

    def turn_begins(self, session: Session, turn_input: TurnInput | None) -> None:
        """A turn or an append is about to run. Results of tools in its input tell how long the tools took."""
        self.idle.came_back(session.session_id)
        wait = self._waits.pop(session.session_id, None)
        if wait is not None:
            seconds = self._steady() - wait.since
            answered = _tools_answered(turn_input, wait.calls)
            for tool in answered:
                self.latencies.observe(session.tenant, tool, seconds)
            if answered:
                self._soon(_LATENCIES, self._keep_latencies)

    def persists_turns(self, session: Session | None) -> bool:
        """Whether a turn's KV is written to disk as soon as it ends. None: a turn of no session."""
        return self._policy_of(session).when is Persistence.ALWAYS

    def lifetime(self, session: Session | None) -> Lifetime:
        """How far the KV of a session, or of a turn of none, may go, however much room is wanted."""
        return lifetime_under(self._policy_of(session))

    def _policy_of(self, session: Session | None) -> PersistencePolicy:
        return self.policy if session is None else session.keeping.policy(self.policy)

    def turn_ended(self, session: Session, token_ids: Sequence[int], calls: Mapping[str, str]) -> None:
        """The turn that made ``session`` what it is was committed; ``calls`` are the tool calls that ended it."""
        session_id = session.session_id
        self._waits[session_id] = _Wait(self._steady(), calls)
        if len(self._waits) > MAX_WAITS:
            self._waits.popitem(last=False)
        self._watch_idleness(session)
        if session.keeping.final:
            self._soon(session_id, lambda: self._let_go(session, token_ids, 0))
            return
        retention = self.retention(session, self.expected_idle_s(session.tenant, list(calls.values())))
        if retention is not None and (retention.expected_idle_s is not None or not self.knows(session_id)):
            self._soon(session_id, lambda: self._retain(session, token_ids, retention))

    def turn_failed(self, session: Session) -> None:
        """A turn ended without a result: the session is as it was, and may become idle."""
        self._watch_idleness(session)

    def expected_idle_s(self, tenant: str, tools: Sequence[str]) -> tuple[float, float] | None:
        """How long calls of ``tools``, made at once, took until now; None where nothing is known of any of them."""
        known = [seconds for tool in tools if (seconds := self.latencies.expected_idle_s(tenant, tool)) is not None]
        return (max(p50 for p50, _ in known), max(p95 for _, p95 in known)) if known else None

    def retention(self, session: Session, expected_idle_s: tuple[float, float] | None) -> Retention | None:
        """What is to be told of a session's path; None if it is kept like any other."""
        retained = session.keeping.retained
        ttl_s = None if retained is None else retained.ttl_s(self._clock())
        if retained is None or (ttl_s is not None and ttl_s <= 0):
            return None if expected_idle_s is None else Retention(expected_idle_s=expected_idle_s)
        return Retention(priority=retained.priority, hard=retained.hard, ttl_s=ttl_s, expected_idle_s=expected_idle_s)

    # -- as sessions shrink and end -------------------------------------------------------------------------------

    def rolled_back(self, session: Session, old: SessionLog) -> None:
        """The session went back; what came after, and no other session shares, goes first."""
        session_id, kept = session.session_id, session.place.num_tokens
        self._waits.pop(session_id, None)
        self._soon(session_id, lambda: self._supersede(session, old, kept))

    def closed(self, session: Session, old: SessionLog) -> None:
        """The session is over."""
        session_id = session.session_id
        self._waits.pop(session_id, None)
        self.idle.came_back(session_id)

        async def let_go() -> None:
            await self._let_go(session, old.token_ids(), await tokens_shared(self._store, session_id, old, 0))

        self._soon(session_id, let_go)

    # -- for those who do wait ------------------------------------------------------------------------------------

    def knows(self, session_id: str) -> bool:
        """Whether the engine that runs now was told of the session's retention."""
        told = self._told.get(session_id)
        try:
            return told is not None and told is self._engine.info
        except EngineError:
            return False

    def told(self, session_id: str) -> None:
        """The engine that runs now knows the session's retention."""
        self._told[session_id] = self._engine.info

    async def release(self, session_id: str) -> None:
        """Take back what the engine was told of a session."""
        await self._engine.release(ReleasePath(owner=session_id))
        self._told.pop(session_id, None)

    def release_soon(self, owner: str) -> None:
        """As ``release``, behind what was asked before."""
        self._soon(owner, lambda: self.release(owner))

    async def settled(self) -> None:
        """Wait until all that was to be told was told, or could not be."""
        while self._last:
            await asyncio.wait(set(self._last.values()))

    async def recall(self) -> None:
        """Know how long tools took before this start. For the time before the first turn."""
        for stored in await self._store.tool_latencies():
            try:
                self.latencies.recall(stored.tenant, stored.tool, LatencySketch.from_bytes(stored.sketch))
            except msgspec.DecodeError as error:
                logger.warning("what was known of a tool's latency cannot be read: %s", error)

    async def aclose(self) -> None:
        """Tell nothing more, and keep what was learnt."""
        await self.idle.aclose()
        with contextlib.suppress(SessileError):  # a store that fails has said so to the turns
            await self._keep_latencies()
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- one by one, behind the turns -----------------------------------------------------------------------------

    def _watch_idleness(self, session: Session) -> None:
        policy = session.keeping.policy(self.policy)
        if policy.when is Persistence.ON_IDLE and policy.idle_s is not None:
            self.idle.left(session.session_id, policy.idle_s)

    def _soon(self, session_id: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work`` after what was asked before for the same session."""
        before = self._last.get(session_id)

        async def in_turn() -> None:
            if before is not None:
                await asyncio.wait({before})
            try:
                await work()
            except SessileError as error:
                logger.info("the cache was not told: %s", error, extra={"session_id": session_id})

        task = asyncio.get_running_loop().create_task(in_turn())
        self._last[session_id] = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._forget(session_id, done))

    def _forget(self, session_id: str, done: asyncio.Task[None]) -> None:
        self._tasks.discard(done)
        if self._last.get(session_id) is done:
            del self._last[session_id]

    async def _keep_latencies(self) -> None:
        """Write what was observed of tools since the last time; what one write fails to keep, the tool's next one
        does."""
        changed = self.latencies.take_changed()
        if changed:
            now = self._clock()
            await self._store.keep_tool_latencies(
                [
                    StoredLatency(tenant=tenant, tool=tool, sketch=sketch, used_at=now)
                    for (tenant, tool), sketch in changed.items()
                ]
            )

    async def _retain(self, session: Session, token_ids: Sequence[int], retention: Retention) -> None:
        path = RetainPath(
            token_ids=list(token_ids), cache_salt=session.tenant, owner=session.session_id, retention=retention
        )
        outcome = await self._engine.retain(path)
        if session.keeping.retained is not None and outcome.verdict is not Verdict.REJECTED:
            self.told(session.session_id)

    async def _let_go(self, session: Session, token_ids: Sequence[int], shared: int) -> None:
        """The session's KV makes room first, but for the ``shared`` first tokens."""
        await self.release(session.session_id)
        if shared < len(token_ids):
            await self._engine.supersede(_superseded(session, token_ids, shared))

    async def _supersede(self, session: Session, old: SessionLog, kept: int) -> None:
        shared = await tokens_shared(self._store, session.session_id, old, kept)
        if shared < old.num_tokens:
            await self._engine.supersede(_superseded(session, old.token_ids(), shared))

    async def _persist(self, session_id: str) -> None:
        """The session was idle for as long as its policy says."""
        session = await self._store.session(session_id)
        if session is None or session.state is SessionState.CLOSED:
            return
        log = await self._store.log(session.place)
        path = PersistPath(token_ids=log.token_ids(), cache_salt=session.tenant, owner=session_id)
        outcome = await self._engine.persist(path)
        logger.debug("persisted when idle: %s", outcome.tokens_by_tier, extra={"session_id": session_id})


def lifetime_under(policy: PersistencePolicy) -> Lifetime:
    """How far KV may go under ``policy``."""
    return Lifetime.PROCESS if policy.when is Persistence.NONE else Lifetime.DURABLE


def _superseded(session: Session, token_ids: Sequence[int], from_token: int) -> SupersedePath:
    return SupersedePath(
        token_ids=list(token_ids), cache_salt=session.tenant, owner=session.session_id, from_token=from_token
    )


def _tools_answered(turn_input: TurnInput | None, calls: Mapping[str, str]) -> list[str]:
    """Names of the tools whose results an input has, each once."""
    match turn_input:
        case ToolResultInput(tool_call_id, _, name):
            found = [name or calls.get(tool_call_id)]
        case MessagesInput(messages):
            results = [message for message in messages if message.role is Role.TOOL]
            found = [message.name or calls.get(message.tool_call_id or "") for message in results]
        case _:
            found = []
    return list(dict.fromkeys(name for name in found if name and is_tool_name(name)))
