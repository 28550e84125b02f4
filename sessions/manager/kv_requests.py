"""What owners ask about a session's KV: hints, suspend and resume. None of it changes the log or the version."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from ...server.engine.cache_messages import ReleasePath, ResumePath, RetainOutcome, RetainPath, SuspendPath
from ..cache.retention import Retention, Verdict
from ..errors import CapacityError
from ..keeping import (
    BRANCH_TTL_S,
    ExpectedOutput,
    Final,
    Hint,
    Keeping,
    Persistence,
    Retain,
    ToolWait,
    WillBranch,
    require_hint,
)
from ..session import Session
from . import answers, validation
from .kv_care import KvCare
from .ports import Clock, EngineCache
from .records import SessionRecords
from .requests import (
    HintOutcome,
    HintRequest,
    HintVerdict,
    Mutation,
    Resumed,
    ResumeRequest,
    Suspended,
    SuspendRequest,
    TokensByTier,
)
from .running import RunningWork
from .views import view_of

_Answer = TypeVar("_Answer", bound=msgspec.Struct)

_VERDICTS = {
    Verdict.ACCEPTED: HintVerdict.ACCEPTED,
    Verdict.CLIPPED: HintVerdict.CLIPPED,
    Verdict.REJECTED: HintVerdict.REJECTED,
}
_PIN_RETRY_S = 5.0
_HOLDS = HintOutcome(verdict=HintVerdict.ACCEPTED)


class KvRequests:
    """Answers them. The engine is told first, the store after: what is on disk was agreed to."""

    def __init__(
        self, records: SessionRecords, engine: EngineCache, running: RunningWork, care: KvCare, clock: Clock
    ) -> None:
        self._records = records
        self._engine = engine
        self._running = running
        self._care = care
        self._clock = clock

    async def hint(self, request: HintRequest) -> HintOutcome:
        """Take a hint. Allowed while a turn runs.

        Raises:
            CapacityError: a hard pin, and the budget of pins is used up.
        """
        validation.require_mutation(request)
        require_hint(request.hint)
        session, stored = await self._records.find(request)
        if stored is not None:
            return answers.answer_again(stored, request, HintOutcome)
        session.require_version(request.expected_version)
        outcome = await self._told(session, request.hint)
        now, num_tokens = self._clock(), session.place.num_tokens
        if outcome.verdict is HintVerdict.REJECTED:
            return await self._keep(request, lambda keeping: keeping, outcome)
        return await self._keep(request, lambda keeping: keeping.with_hint(request.hint, num_tokens, now=now), outcome)

    async def suspend(self, request: SuspendRequest) -> Suspended:
        """Give the session's device memory back. Not while a turn runs."""
        validation.require_mutation(request)
        async with self._running.alone_in(request.session_id, request.request_id) as claim:
            claim.is_ending()
            session, stored = await self._records.find(request)
            if stored is not None:
                return answers.answer_again(stored, request, Suspended)
            session.require_version(request.expected_version)
            token_ids = await self._token_ids(session)
            tiers, freed = TokensByTier(), 0
            if token_ids:
                path = SuspendPath(
                    token_ids=token_ids,
                    cache_salt=session.tenant,
                    owner=session.session_id,
                    persist=session.keeping.policy(self._care.policy).when is not Persistence.NONE,
                )
                outcome = await self._engine.suspend(path)
                tiers, freed = tokens_by_tier(outcome.tokens_by_tier), outcome.device_blocks_given_back
            self._care.idle.came_back(session.session_id)
            answer = Suspended(
                session=view_of(_marked(session, suspended=True), self._care.policy),
                tokens_by_tier=tiers,
                device_blocks_freed=freed,
            )
            return await self._keep(request, _suspending(suspended=True), answer)

    async def resume(self, request: ResumeRequest) -> Resumed:
        """Begin to bring the session's KV back, and say how long its next turn would wait for it."""
        validation.require_mutation(request)
        session, stored = await self._records.find(request)
        if stored is not None:
            return answers.answer_again(stored, request, Resumed)
        session.require_version(request.expected_version)
        token_ids = await self._token_ids(session)
        tiers, to_compute, seconds, prefetching = TokensByTier(), 0, 0.0, False
        if token_ids:
            path = ResumePath(
                token_ids=token_ids,
                cache_salt=session.tenant,
                owner=session.session_id,
                lifetime=self._care.lifetime(session),
            )
            estimate = await self._engine.resume(path)
            tiers = tokens_by_tier(estimate.tokens_by_tier)
            to_compute, seconds = estimate.tokens_to_compute, estimate.seconds
            prefetching = estimate.prefetching
        busy = self._running.is_busy(session.session_id)
        answer = Resumed(
            session=view_of(_marked(session, suspended=False), self._care.policy, busy=busy),
            tokens_by_tier=tiers,
            tokens_to_compute=to_compute,
            seconds=seconds,
            prefetching=prefetching,
        )
        return await self._keep(request, _suspending(suspended=False), answer)

    async def forked(self, source: Session, num_tokens: int) -> None:
        """A fork of ``source`` was made there. The last that was announced ends the keeping of its fork point."""
        branch = source.keeping.branch
        if branch is None or branch.num_tokens != num_tokens:
            return
        keeping = await self._records.store.keep(source.session_id, lambda keeping: keeping.forked_at(num_tokens))
        if keeping.branch is None:
            self._care.release_soon(branch_owner(source.session_id))

    async def _told(self, session: Session, hint: Hint) -> HintOutcome:
        """What the engine makes of a hint."""
        match hint:
            case ToolWait():
                return await self._tool_wait(session, hint)
            case Retain():
                return await self._retain(session, hint)
            case WillBranch():
                retention = Retention(ttl_s=BRANCH_TTL_S)
                return await self._retained(session, retention, branch_owner(session.session_id))
            case ExpectedOutput():
                return _HOLDS
            case Final():
                await self._care.release(session.session_id)
                await self._engine.release(ReleasePath(owner=branch_owner(session.session_id)))
                return _HOLDS

    async def _tool_wait(self, session: Session, hint: ToolWait) -> HintOutcome:
        expected = hint.expected_idle_s() or self._care.expected_idle_s(session.tenant, [hint.tool])
        if expected is None:
            reason = f"nothing is known yet of how long {hint.tool} takes: name p50_seconds"
            return HintOutcome(verdict=HintVerdict.REJECTED, reason=reason)
        retention = self._care.retention(session, expected)
        assert retention is not None
        outcome = await self._retained(session, retention, session.session_id)
        if outcome.verdict is HintVerdict.CLIPPED:  # that is the pin beside it: the wait holds
            return msgspec.structs.replace(outcome, verdict=HintVerdict.ACCEPTED, reason="")
        return outcome

    async def _retain(self, session: Session, hint: Retain) -> HintOutcome:
        if hint.ttl_s == 0:
            await self._care.release(session.session_id)
            return _HOLDS
        retention = Retention(priority=hint.priority, ttl_s=hint.ttl_s, hard=hint.hard)
        outcome = await self._retained(session, retention, session.session_id)
        if hint.hard and outcome.verdict is HintVerdict.REJECTED:
            raise CapacityError(
                outcome.reason or "the budget of hard pins is used up",
                field="hint.retain.hard",
                remedy="release another pin, or retain with a priority instead",
                retry_after_s=_PIN_RETRY_S,
            )
        if outcome.verdict is not HintVerdict.REJECTED and session.place.num_tokens:
            self._care.told(session.session_id)
        return outcome

    async def _retained(self, session: Session, retention: Retention, owner: str) -> HintOutcome:
        """Tell the engine of the session's path; an empty one has nothing to keep yet, and is told of after a turn."""
        token_ids = await self._token_ids(session)
        if not token_ids:
            return HintOutcome(verdict=HintVerdict.ACCEPTED, expires_in_s=retention.ttl_s)
        path = RetainPath(token_ids=token_ids, cache_salt=session.tenant, owner=owner, retention=retention)
        return _outcome(await self._engine.retain(path))

    async def _token_ids(self, session: Session) -> list[int]:
        return (await self._records.store.log(session.place)).token_ids()

    async def _keep(self, request: Mutation, change: Callable[[Keeping], Keeping], answer: _Answer) -> _Answer:
        answered, _ = await self._records.keep(request, change, answer)
        return answered


def branch_owner(session_id: str) -> str:
    """Under which name the engine keeps a session's fork point, beside its path."""
    return f"{session_id}/branch"


def owner_of(name: str) -> str:
    """The session that the engine knows under a name, its own or its fork point's."""
    return name.removesuffix("/branch")


def tokens_by_tier(tokens: dict[str, int]) -> TokensByTier:
    """The engine's counts, by names of tiers."""
    return TokensByTier(**{tier: tokens.get(tier, 0) for tier in TokensByTier.__struct_fields__})


def _outcome(outcome: RetainOutcome) -> HintOutcome:
    return HintOutcome(
        verdict=_VERDICTS[outcome.verdict],
        reason=outcome.reason,
        pinned_tokens=outcome.pinned_tokens,
        expires_in_s=outcome.expires_in_s,
    )


def _suspending(*, suspended: bool) -> Callable[[Keeping], Keeping]:
    return lambda keeping: msgspec.structs.replace(keeping, suspended=suspended)


def _marked(session: Session, *, suspended: bool) -> Session:
    return msgspec.structs.replace(session, keeping=_suspending(suspended=suspended)(session.keeping))
