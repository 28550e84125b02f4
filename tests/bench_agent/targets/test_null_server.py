"""The null servers: what they answer is when it was sent, by either wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from sessile.bench_agent.driver.ask import Ask, Driver, Sampling
from sessile.bench_agent.driver.dialects import dialect_named
from sessile.bench_agent.driver.observation import Observation
from sessile.bench_agent.driver.openai_http import OpenAiDriver
from sessile.bench_agent.driver.session_grpc import SessionDriver
from sessile.bench_agent.targets.null_http import NullHttpServer
from sessile.bench_agent.targets.null_pace import Pace, told_stamps
from sessile.bench_agent.targets.null_sessions import NullSessionServer
from sessile.server.proto import session_pb2 as pb
from sessile.server.proto.session_pb2_grpc import SessionServiceStub

PACE = Pace(ttft_s=0.02, tpot_s=0.005)


@pytest.fixture(params=["http", "grpc"])
async def driver(request: pytest.FixtureRequest) -> AsyncIterator[Driver]:
    server = NullHttpServer(PACE) if request.param == "http" else NullSessionServer(PACE)
    address = f"127.0.0.1:{await server.start()}"
    made: Driver = (
        OpenAiDriver(f"http://{address}", model=None, dialect=dialect_named("openai"))
        if request.param == "http"
        else SessionDriver(address)
    )
    yield made
    await made.close()
    await server.stop()


async def test_pieces_say_when_they_were_sent_and_keep_the_pace(driver: Driver) -> None:
    conversation = driver.conversation("s")
    for index in range(2):
        seen = Observation()
        continues = index - 1 if index else None
        ask = Ask(index=index, continues=continues, text="hi", sampling=Sampling(max_tokens=6))
        await conversation.turn(ask, seen)
        received, sent = told_stamps(seen.pieces)
        assert seen.started < received and len(sent) == 6
        assert all(at >= received + PACE.ttft_s + i * PACE.tpot_s for i, at in enumerate(sent))
        assert all(at > stamp - 0.001 for (at, _), stamp in zip(seen.arrivals, sent, strict=True))
        assert seen.usage.completion_tokens == 6
    await conversation.close()


async def test_turns_run_at_the_same_time(driver: Driver) -> None:
    conversations = [driver.conversation(str(number)) for number in range(8)]
    seen = [Observation() for _ in conversations]
    ask = Ask(index=0, text="hi", sampling=Sampling(max_tokens=20))
    await asyncio.gather(*(one.turn(ask, what) for one, what in zip(conversations, seen, strict=True)))
    assert max(what.arrivals[0][0] for what in seen) < min(what.arrivals[-1][0] for what in seen)
    assert [len(what.pieces) for what in seen] == [20] * 8


async def test_a_call_that_is_cancelled_or_unknown_disturbs_no_other() -> None:
    server = NullSessionServer(PACE)
    target = f"127.0.0.1:{await server.start()}"
    async with grpc.aio.insecure_channel(target) as channel:
        stub = SessionServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Fork(pb.ForkRequest(session_id="s"))
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        session = (await stub.Open(pb.OpenRequest(system="long " * 40_000))).session.session_id
        request = pb.GenerateRequest(session_id=session, sampling=pb.SamplingParams(max_tokens=500))
        call = stub.Generate(request)
        await call.read()
        call.cancel()
        request.sampling.max_tokens = 3
        said = [event async for event in stub.Generate(request)]
        assert [event.WhichOneof("event") for event in said] == ["delta"] * 3 + ["finished"]
        assert said[-1].finished.turn == 1
    await server.stop()
