"""A stream whose connection is cut is taken up again: no token is lost, none comes twice, one turn is committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tcp_proxy import TcpProxy

from sessile.server.client import (
    AsyncSession,
    AsyncSessionClient,
    AsyncTurn,
    RetryPolicy,
    SamplingParams,
    Session,
    SessionClient,
    TextDelta,
    ToolCallArguments,
    ToolCallStarted,
    Turn,
)

SAID = [64 + index % 26 for index in range(60)] + [257]


@pytest.fixture
async def proxy(front: Any) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(front.port)
    await proxy.start()
    yield proxy
    await proxy.stop()


async def no_wait(_seconds: float) -> None:
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("cut_after", [0, 100, 300, 600, 900])
async def test_a_turn_goes_on_after_the_cut(front: Any, proxy: TcpProxy, cut_after: int) -> None:
    """The server notices that its client is gone and ends the turn, or has committed it by then: both are taken up."""
    retry = RetryPolicy(max_attempts=200, sleep=no_wait)
    async with AsyncSessionClient(f"127.0.0.1:{proxy.port}", retry=retry) as client:
        session = await client.open()
        for _ in range(10):  # each run of the turn says the same, as a model with a seed does
            front.engine.will_say(SAID)
        proxy.cut_after = cut_after
        turn = session.generate(messages="hi", sampling=SamplingParams(seed=7))
        token_ids: list[int] = []
        text = ""
        async for delta in turn:
            token_ids += delta.token_ids
            text += delta.text
        assert proxy.cuts == 1
        assert token_ids == SAID
        assert text == turn.text == "".join(chr(33 + token) for token in SAID[:-1])
        assert (turn.finished.turn, session.version) == (1, 2)
        log = await front.store.log((await front.store.session(session.session_id)).place)
        assert log.token_ids()[-len(SAID) :] == SAID
        front.engine.scripts.clear()


async def test_the_last_event_is_lost_on_its_way(front: Any, proxy: TcpProxy) -> None:
    """The turn is on disk, and its client does not know: the answer is told again, the turn is not run again."""
    retry = RetryPolicy(max_attempts=200, sleep=no_wait)
    async with AsyncSessionClient(f"127.0.0.1:{proxy.port}", retry=retry) as client:
        session = await client.open()
        gate = asyncio.Event()
        front.engine.will_say(SAID, gate=gate, tokens_a_step=len(SAID) - 1)
        front.engine.will_say(SAID)  # the cut may come before the commit: then it is run again, and says the same
        turn = session.generate(messages="hi", sampling=SamplingParams(seed=7))
        first = await anext(turn)
        proxy.cut_after = 0
        gate.set()
        rest = [delta async for delta in turn]
        told = [*first.token_ids, *(token for delta in rest for token in delta.token_ids)]
        assert (told, proxy.cuts) == (SAID, 1)
        assert len(front.engine.submitted) <= 2
        assert turn.finished.turn == 1


async def test_other_calls_are_sent_again_under_their_ids(front: Any, proxy: TcpProxy) -> None:
    retry = RetryPolicy(max_attempts=200, sleep=no_wait)
    async with AsyncSessionClient(f"127.0.0.1:{proxy.port}", retry=retry) as client:
        proxy.cut_after = 0
        session = await client.open()
        await session.generate(messages="hi").wait()
        proxy.cut_after = 0
        fork = await session.fork()
        proxy.cut_after = 0
        await fork.suspend()
        proxy.cut_after = 0
        await session.rollback(turn=0)
        assert proxy.cuts == 4
        assert session.version == 3
        assert len([view async for view in client.sessions()]) == 2


CALLED = 'Hm.\n{"name": "read", "arguments": {"path":  "a.txt"}}'
READ = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


async def test_a_cut_at_every_event_loses_and_doubles_nothing(front: Any, proxy: TcpProxy) -> None:
    """Text, the beginning of a call, its arguments, the end: whatever came last before the connection broke."""
    said = [*front.manager._turns.prompts.tokenizer.encode(CALLED, allow_special=False), 257]
    retry = RetryPolicy(max_attempts=200, sleep=no_wait)
    async with AsyncSessionClient(f"127.0.0.1:{proxy.port}", retry=retry) as client:
        cut_at, num_events, kinds = 0, 1, set()
        while cut_at <= num_events:
            for _ in range(6):
                front.engine.will_say(said, tokens_a_step=5)
            session = await client.open(tools=[READ])
            turn = session.generate(messages="hi", sampling=SamplingParams(seed=7))
            if cut_at == 0:
                proxy.cut()
            events = []
            async for event in turn.events():
                events.append(event)
                if len(events) == cut_at:
                    proxy.cut()
            kinds |= {type(event) for event in events}
            num_events = max(num_events, len(events))
            texts = [event for event in events if isinstance(event, TextDelta)]
            arguments = [event.fragment for event in events if isinstance(event, ToolCallArguments)]
            started = [event for event in events if isinstance(event, ToolCallStarted)]
            assert [token for text in texts for token in text.token_ids] == said, cut_at
            assert "".join(text.text for text in texts) == turn.text == "Hm."
            assert ("".join(arguments), len(started)) == ('{"path":  "a.txt"}', 1)
            assert [(call.id, call.name) for call in turn.tool_calls] == [(started[0].id, "read")]
            assert (turn.finished.turn, session.version) == (1, 2)
            log = await front.store.log((await front.store.session(session.session_id)).place)
            assert log.token_ids()[-len(said) :] == said
            front.engine.scripts.clear()
            cut_at += 1
        assert kinds == {TextDelta, ToolCallStarted, ToolCallArguments}
        assert num_events > 8


def test_the_twin_without_asyncio_has_every_method() -> None:
    """It delegates: its turns are the asynchronous ones, read on a loop of its own, and so resume as they do."""
    for twin, original in ((SessionClient, AsyncSessionClient), (Session, AsyncSession), (Turn, AsyncTurn)):
        mine = {name for name in vars(twin) if not name.startswith("_")}
        theirs = {name for name in vars(original) if not name.startswith("_")}
        assert theirs - mine - {"aclose", "export"} == set(), twin  # chunks are for asyncio alone
