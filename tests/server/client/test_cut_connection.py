"""A stream whose connection is cut is taken up again: no token is lost, none comes twice, one turn is committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tcp_proxy import TcpProxy

from sessile.server.client import AsyncSessionClient, RetryPolicy, SamplingParams

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
        turn = session.generate(messages="hi", sampling=SamplingParams(seed=7))
        first = await anext(turn)
        proxy.cut_after = 0
        gate.set()
        rest = [delta async for delta in turn]
        told = [*first.token_ids, *(token for delta in rest for token in delta.token_ids)]
        assert (told, proxy.cuts) == (SAID, 1)
        assert len(front.engine.submitted) <= 2  # the cut may have come before the commit
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
