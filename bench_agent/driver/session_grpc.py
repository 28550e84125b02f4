"""Sessile's gRPC protocol: the server keeps the conversation, each turn sends what is new.

A turn that goes on where the session stands is a Generate. One that goes on from an earlier turn is a Rollback when
nothing will go on from what came after it, else a Fork. A turn that starts from nothing opens a session.
"""

from __future__ import annotations

import asyncio

import msgspec

from ...server.client import (
    NO_RETRIES,
    AsyncSession,
    AsyncSessionClient,
    CapacityError,
    ConnectionLost,
    Message,
    Role,
    SamplingParams,
    SessileError,
    StaleVersion,
    Tool,
    ToolCall,
    TurnUsage,
)
from ..workload.plan import Message as PlanMessage
from .ask import Ask, Conversation, Sampling, ServerBusy, ServerUnreachable, TurnRefused
from .observation import Observation, TokenLogprob, Usage


class SessionDriver:
    """Turns over the SDK. Retries are the harness's, so that they are counted."""

    wire = "grpc"

    def __init__(self, address: str, *, tenant: str = "", timeout_s: float = 600.0) -> None:
        self.address = address
        self._client = AsyncSessionClient(address, tenant=tenant, retry=NO_RETRIES)
        self._timeout_s = timeout_s

    def conversation(self, session_id: str) -> Conversation:
        """A new session; nothing is sent before its first turn."""
        return _Sessions(self._client, self._timeout_s)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()


class _Place:
    """Where a turn ended: a server's session and the number of the turn in it."""

    def __init__(self, session: AsyncSession, turn: int) -> None:
        self.session = session
        self.turn = turn


class _Sessions:
    """The server's sessions of one planned session. A server's session runs one turn at a time."""

    def __init__(self, client: AsyncSessionClient, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._ends: dict[int, _Place] = {}  # planned turn -> where it ended
        self._taken: set[str] = set()  # sessions in which a turn runs
        self._opened: list[AsyncSession] = []

    async def turn(self, ask: Ask, seen: Observation) -> None:
        seen.started = seen.started or seen.clock()
        try:
            session = await self._session_for(ask)
            self._taken.add(session.session_id)
            try:
                await self._generate(session, ask, seen)
            finally:
                self._taken.discard(session.session_id)
        except SessileError as error:
            raise _translated(error) from error
        finally:
            seen.ended = seen.clock()

    async def close(self) -> None:
        for session in self._opened:
            try:
                await session.close(timeout_s=10)
            except SessileError:  # the server may be gone, and its sessions are its own affair
                return

    async def _session_for(self, ask: Ask) -> AsyncSession:
        if ask.continues is None:
            session = await self._open(ask)
        else:
            place = self._ends[ask.continues]
            session = place.session
            free = session.session_id not in self._taken
            if free and session.view.num_turns == place.turn:
                return session
            if free and ask.closes_branch:
                self._taken.add(session.session_id)
                await session.rollback(turn=place.turn, timeout_s=self._timeout_s)
                return session
            session = await self._fork(place)
        self._opened.append(session)
        return session

    async def _open(self, ask: Ask) -> AsyncSession:
        first = ask.new[0] if ask.new else None
        system = first.content if first is not None and first.role == "system" else None
        tools: tuple[Tool, ...] = ask.tools
        return await self._client.open(system=system, tools=tools, timeout_s=self._timeout_s)

    async def _fork(self, place: _Place) -> AsyncSession:
        for _ in range(8):
            try:
                return await place.session.fork(turn=place.turn, timeout_s=self._timeout_s)
            except StaleVersion:  # a turn of that session was committed meanwhile; the point is still there
                await asyncio.sleep(0)
        return await place.session.fork(turn=place.turn, timeout_s=self._timeout_s)

    async def _generate(self, session: AsyncSession, ask: Ask, seen: Observation) -> None:
        sampling = _sampling(ask.sampling)
        if ask.text is not None:
            turn = session.generate(text=ask.text, sampling=sampling, timeout_s=self._timeout_s)
        else:
            opening = ask.continues is None and bool(ask.new) and ask.new[0].role == "system"
            new = ask.new[1:] if opening else ask.new
            messages = [_message(message) for message in new]
            turn = session.generate(messages=messages, sampling=sampling, timeout_s=self._timeout_s)
        async with turn:
            async for delta in turn:
                seen.arrived(delta.text, len(delta.token_ids))
                seen.logprobs += [
                    TokenLogprob(str(token_id), found.logprob)
                    for token_id, found in zip(delta.token_ids, delta.logprobs, strict=False)
                ]
            finished = turn.finished
        seen.usage = _usage(finished.usage)
        seen.finish_reason = str(finished.finish_reason)
        self._ends[ask.index] = _Place(session, finished.turn)


def _sampling(sampling: Sampling) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        ignore_eos=sampling.exact_length,
        seed=sampling.seed,
        logprobs=sampling.logprobs,
    )


def _message(message: PlanMessage) -> Message:
    return Message(
        role=Role(message.role),
        content=message.content,
        tool_calls=tuple(ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in message.tool_calls),
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def _usage(usage: TurnUsage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.tokens_by_source.cached,
        by_source={name: count for name, count in msgspec.structs.asdict(usage.tokens_by_source).items() if count},
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
        queue_s=usage.queue_s,
        prefill_s=usage.prefill_s,
        decode_s=usage.decode_s,
    )


def _translated(error: SessileError) -> TurnRefused | ServerBusy | ServerUnreachable:
    if isinstance(error, ConnectionLost):
        return ServerUnreachable(str(error))
    if isinstance(error, CapacityError) or error.retry_after_s is not None:
        return ServerBusy(str(error), retry_after_s=error.retry_after_s or 1.0)
    return TurnRefused(str(error))
