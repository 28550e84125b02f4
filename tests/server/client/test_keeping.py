"""Hints, suspend, resume and watch over the wire, through both clients."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from sessile.server.client import (
    CapacityError,
    ExpectedOutput,
    Final,
    Hint,
    HintVerdict,
    Miss,
    Missed,
    Persistence,
    PersistencePolicy,
    RequestError,
    Retain,
    SessionClient,
    StaleVersion,
    ToolWait,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    WatchStarted,
    WillBranch,
)
from sessile.server.engine.cache_messages import RetainOutcome, RetainPath
from sessile.server.engine.messages import MissedTokens
from sessile.sessions.cache.retention import Verdict


@pytest.mark.parametrize(
    "hint",
    [
        ToolWait(tool="grep", p50_s=1.5),
        ToolWait(tool="grep", p50_s=1.0, p95_s=9.0),
        Retain(ttl_s=60.0, priority=-3),
        Retain(),
        WillBranch(branches=4),
        ExpectedOutput(text="def f():\n"),
        Final(),
    ],
    ids=lambda hint: type(hint).__name__,
)
async def test_hints_arrive_as_they_were_sent(front: Any, hint: Hint) -> None:
    async with front.client(tenant="a") as client, client.open() as session:
        await session.generate(messages="hi").wait()
        front.engine.asked.clear()
        assert (await session.hint(hint)).verdict is HintVerdict.ACCEPTED
        stored = (await front.store.session(session.session_id)).keeping
        match hint:
            case ToolWait():
                wanted = (1.5, 6.0) if hint.p95_s is None else (1.0, 9.0)
                assert front.engine.asked[0].retention.expected_idle_s == wanted
            case Retain():
                assert (stored.retained.priority, stored.retained.until is None) == (hint.priority, hint.ttl_s is None)
            case WillBranch():
                assert stored.branch.forks_left == 4
            case ExpectedOutput():
                assert stored.expected_output == hint.text
            case Final():
                assert stored.final
        assert session.version == 2


async def test_a_hint_that_is_refused_keeps_its_type(front: Any) -> None:
    async with front.client() as client, client.open() as session:
        await session.generate(messages="hi").wait()
        with pytest.raises(RequestError) as refused:
            await session.hint(Retain(priority=1000))
        assert refused.value.field == "hint.retain.priority"
        for _ in range(6):
            rejected = RetainOutcome(verdict=Verdict.REJECTED, reason="the budget is used up")
            front.engine.will_answer(RetainPath, rejected)
        with pytest.raises(CapacityError, match="used up"):
            await session.hint(Retain(hard=True))
        assert front.sleeps.seconds == [5.0] * 5  # it may succeed later: sent again as the server says


async def test_suspend_resume_and_policies(front: Any) -> None:
    async with front.client() as client:
        policy = PersistencePolicy(Persistence.ON_IDLE, 5.0)
        async with client.open(persistence=policy) as session:
            assert session.view.persistence == policy
            await session.generate(messages="hi").wait()
            suspended = await session.suspend()
            assert suspended.session.suspended
            assert suspended.tokens_by_tier.disk == session.view.num_tokens
            assert suspended.device_blocks_freed > 0
            assert [view.suspended async for view in client.sessions()] == [True]
            resumed = await session.resume()
            assert (resumed.tokens_by_tier.disk, resumed.seconds) == (session.view.num_tokens, 0.01)
            assert not session.view.suspended
            other = await client.session(session.session_id)
            await other.generate(messages="meanwhile").wait()
            with pytest.raises(StaleVersion):
                await session.suspend()
        assert (await client.open()).view.persistence.when is Persistence.ALWAYS


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (PersistencePolicy(Persistence.ALWAYS, 5.0), "persistence.idle_seconds"),
        (PersistencePolicy(Persistence.ON_IDLE, -1.0), "persistence.idle_seconds"),
        (PersistencePolicy(Persistence.ON_IDLE, float("nan")), "persistence.idle_seconds"),
    ],
)
async def test_policies_that_cannot_be_kept(front: Any, policy: PersistencePolicy, field: str) -> None:
    async with front.client() as client:
        with pytest.raises(RequestError) as refused:
            await client.open(persistence=policy)
        assert refused.value.field == field


async def test_a_watch_tells_of_turns_and_ends(front: Any) -> None:
    async with front.client() as client:
        session = await client.open()
        events = session.watch()
        assert isinstance((await anext(events)).what, WatchStarted)
        turn = await session.generate(messages="hi").wait()
        assert isinstance((await anext(events)).what, TurnStarted)
        finished = await anext(events)
        assert isinstance(finished.what, TurnFinished)
        assert (finished.what.usage, finished.session_id) == (turn.usage, session.session_id)
        front.engine.will_say([64, 65], gate=asyncio.Event())
        cancelled = session.generate(messages="hi")
        await anext(cancelled)
        await cancelled.aclose()
        assert isinstance((await anext(events)).what, TurnStarted)
        failed = (await anext(events)).what
        assert isinstance(failed, TurnFailed)
        assert failed.error == "CANCELLED"
        await events.aclose()
        whole = client.watch()
        assert isinstance((await anext(whole)).what, WatchStarted)
        await front.manager.drain()
        assert [event async for event in whole] == []


async def test_turns_and_misses_arrive_as_they_were(front: Any) -> None:
    miss = Miss(
        rule="PL101",
        name="clock",
        explanation="a time in the system prompt changed",
        remedy="move it to the end",
        lost_tokens=7,
        first_divergent_token=0,
        path="messages[0].content",
        char=12,
        was="**:**",
        now="**:**",
    )
    missed = MissedTokens(evicted=3, other_engine=4)
    async with front.client() as client, client.open() as session, aclosing(session.watch()) as events:
        await anext(events)
        front.manager._turns.observer.miss_of = lambda turn_id: miss
        front.engine.missed = missed
        finished = await session.generate(messages="hi").wait()
        assert (finished.miss, finished.usage.missed, finished.usage.reusable_tokens) == (miss, missed, 7)
        told = [(await anext(events)).what for _ in range(3)]
        assert told[1:] == [finished, Missed(miss=miss)]
        (turn,) = await session.turns()
        assert (turn.usage, turn.miss, turn.finish_reason) == (finished.usage, miss, finished.finish_reason)


async def test_the_client_without_asyncio_has_them_too(front: Any) -> None:
    def talk() -> list[str]:
        with SessionClient(front.target) as client, client.open() as session, session.watch() as events:
            next(events)
            session.generate(messages="hi").wait()
            told = [type(next(events).what).__name__ for _ in range(2)]
            assert len(session.turns()) == 1
            assert session.hint(Retain(ttl_s=9.0)).expires_in_s == 9.0
            assert session.suspend().session.suspended
            assert session.resume().tokens_to_compute == 0
            return told

    assert await asyncio.to_thread(talk) == ["TurnStarted", "TurnFinished"]
