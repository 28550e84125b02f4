"""Watching sessions: what is told, to whom, and what becomes of those who do not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from manager_bench import Bench

from sessile.server.engine.cache_messages import CacheEvent, CacheEventKind
from sessile.sessions.background import AGAIN_S
from sessile.sessions.errors import CapacityError, Draining, EngineError, SessionNotFound
from sessile.sessions.manager import SessionEvent, TurnFinished, WatchRequest
from sessile.sessions.manager.cache_watch import CacheWatch
from sessile.sessions.manager.events import (
    EventsLost,
    KvMoved,
    Movement,
    TurnFailed,
    TurnStarted,
    WatchStarted,
)
from sessile.sessions.manager.watchers import MAX_UNREAD, MAX_WATCHERS, Watchers


async def watching(bench: Bench, session_id: str | None = None, tenant: str = "") -> AsyncGenerator[SessionEvent, None]:
    """A watch that has begun."""
    events = bench.manager.watch(WatchRequest(session_id=session_id, tenant=tenant))
    assert isinstance((await anext(events)).what, WatchStarted)
    return events


async def test_turns_are_told_to_those_whom_they_concern(bench: Bench) -> None:
    mine, sister, stranger = await bench.open(), await bench.open(), await bench.open(tenant="b")
    one, all_mine = await watching(bench, mine.session_id), await watching(bench)
    await bench.say(stranger.session_id, "hi", tenant="b")
    await bench.say(sister.session_id, "hi")
    _, finished = await bench.say(mine.session_id, "hello")
    told = [await anext(one), await anext(one)]
    assert [event.session_id for event in told] == [mine.session_id] * 2
    assert told[0].what == TurnStarted(version=1, prompt_tokens=finished.usage.prompt_tokens)
    assert told[1].what == finished
    kinds = [type((await anext(all_mine)).what) for _ in range(4)]
    assert kinds == [TurnStarted, TurnFinished] * 2
    await one.aclose()
    await all_mine.aclose()


async def test_turns_that_fail_are_told(bench: Bench) -> None:
    session = await bench.open()
    events = await watching(bench, session.session_id)
    bench.engine.will_say([64, 65], fail_after=1)
    with pytest.raises(EngineError):
        await bench.say(session.session_id, "hi")
    assert isinstance((await anext(events)).what, TurnStarted)
    failed = (await anext(events)).what
    assert isinstance(failed, TurnFailed)
    assert (failed.error, failed.message) == ("EngineError", "the engine died")

    bench.engine.will_say([64, 65], gate=asyncio.Event())
    turn = asyncio.create_task(bench.say(session.session_id, "hi"))
    assert isinstance((await anext(events)).what, TurnStarted)
    turn.cancel()
    failed = (await anext(events)).what
    assert isinstance(failed, TurnFailed)
    assert failed.error == "Cancelled"
    await events.aclose()


async def test_what_the_cache_does_is_told_by_owner(bench: Bench) -> None:
    mine, stranger = await bench.open(), await bench.open(tenant="b")
    await bench.say(mine.session_id, "hi")
    await bench.say(stranger.session_id, "hi", tenant="b")
    events = await watching(bench)
    await asyncio.sleep(0)  # the listener begins

    def event(kind: CacheEventKind, owner: str) -> CacheEvent:
        return CacheEvent(kind=kind, tier="host", tokens=32, owner=owner, at=5.0)

    bench.engine.happens(
        event(CacheEventKind.DEMOTED, stranger.session_id),
        event(CacheEventKind.STORED, mine.session_id),
        event(CacheEventKind.EVICTED, ""),
        event(CacheEventKind.DEMOTED, mine.session_id),
        event(CacheEventKind.EXPIRED, f"{mine.session_id}/branch"),
        num_lost=3,
    )
    assert (await anext(events)).what == EventsLost(events=3)
    moved = await anext(events)
    assert (moved.at, moved.session_id) == (5.0, mine.session_id)
    assert moved.what == KvMoved(movement=Movement.DEMOTED, tokens=32, tier="host")
    expired = (await anext(events)).what
    assert isinstance(expired, KvMoved)
    assert expired.movement is Movement.EXPIRED
    await events.aclose()
    assert not bench.engine._listeners  # nobody watches, nobody listens


async def test_after_an_error_watchers_are_told_of_the_gap_and_hear_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: asyncio.Queue[float] = asyncio.Queue()
    go_on = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.put_nowait(seconds)
        await go_on.wait()

    watchers = Watchers(clock=lambda: 1.0)
    watch = CacheWatch(bench.engine, watchers, sleep)
    events = watch.watch("", "ses_1")
    await anext(events)
    reading = asyncio.ensure_future(anext(events))
    await wait_for_listener(bench)
    bench.engine.stops_telling(OSError("out of order"))
    assert (await reading).what == EventsLost(events=0)
    reading = asyncio.ensure_future(anext(events))
    assert await pauses.get() == AGAIN_S
    assert not bench.engine._listeners
    assert "watchers do not hear of the cache: out of order; it begins anew in 1 s" in caplog.text
    go_on.set()
    await wait_for_listener(bench)
    bench.engine.happens(CacheEvent(kind=CacheEventKind.DEMOTED, tier="disk", tokens=16, owner="ses_1", at=5.0))
    assert (await reading).what == KvMoved(movement=Movement.DEMOTED, tokens=16, tier="disk")
    await events.aclose()
    assert not bench.engine._listeners


async def wait_for_listener(bench: Bench) -> None:
    while not bench.engine._listeners:
        await asyncio.sleep(0)


async def test_a_slow_watcher_loses_events_and_is_told_how_many() -> None:
    watchers = Watchers(clock=lambda: 1.0)
    slow, quick = watchers.watch("", None), watchers.watch("", None)
    await anext(slow)
    await anext(quick)
    read: list[Any] = []
    for number in range(MAX_UNREAD + 7):
        watchers.publish("", "ses", TurnStarted(version=number, prompt_tokens=0))
        read.append((await anext(quick)).what)
    assert [event.version for event in read] == list(range(MAX_UNREAD + 7))
    first = [(await anext(slow)).what for _ in range(10)]
    assert [event.version for event in first] == list(range(10))  # type: ignore[union-attr]
    watchers.publish("", "ses", TurnStarted(version=-1, prompt_tokens=0))
    rest = [(await anext(slow)).what for _ in range(MAX_UNREAD - 10 + 2)]
    assert rest[-2:] == [EventsLost(events=7), TurnStarted(version=-1, prompt_tokens=0)]
    await slow.aclose()
    await quick.aclose()


async def test_watches_are_bounded_and_end_with_the_server() -> None:
    watchers = Watchers(clock=lambda: 1.0)
    watches = [watchers.watch("", None) for _ in range(MAX_WATCHERS)]
    for watch in watches:
        await anext(watch)
    with pytest.raises(CapacityError):
        await anext(watchers.watch("", None))
    await watches.pop().aclose()
    again = watchers.watch("", None)
    await anext(again)
    watchers.publish("", "ses", TurnStarted(version=1, prompt_tokens=0))
    watchers.close()
    assert [event.session_id async for event in again] == ["ses"]
    with pytest.raises(Draining):
        await anext(watchers.watch("", None))
    for watch in watches:
        await watch.aclose()


async def test_only_sessions_of_the_tenant_can_be_watched(bench: Bench) -> None:
    session = await bench.open(tenant="a")
    for session_id, tenant in ((session.session_id, "b"), ("ses_none", "a")):
        with pytest.raises(SessionNotFound):
            await anext(bench.manager.watch(WatchRequest(session_id=session_id, tenant=tenant)))
