"""A client that reads slowly slows its own stream, and nobody else's; deadlines and cancels reach the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_calls import bounded
from scripted_engine import ScriptedEngine

from sessile.server.proto import session_pb2 as pb
from sessile.server.proto.session_pb2_grpc import SessionServiceStub

MANY = 5_000
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16_384)]


def turn(session_id: str, **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(session_id=session_id, input=pb.TurnInput(text="hi"), **fields)


async def opened(stub: Any) -> str:
    session_id: str = (await stub.Open(pb.OpenRequest())).session.session_id
    return session_id


async def test_a_slow_reader_slows_its_own_stream_only(front: Any) -> None:
    front.engine = ScriptedEngine(context_length=100_000)
    await bounded(front)
    async with (
        grpc.aio.insecure_channel(front.target, options=SMALL_WINDOW) as slow_channel,
        grpc.aio.insecure_channel(front.target) as channel,
    ):
        slow, quick = SessionServiceStub(slow_channel), SessionServiceStub(channel)
        stuck, others = await opened(slow), [await opened(quick) for _ in range(3)]
        front.engine.will_say([64 + index % 26 for index in range(MANY)] + [257])
        stream = slow.Generate(turn(stuck, sampling=pb.SamplingParams(logprobs=0)))
        first = await stream.read()
        for _ in range(3):
            for session_id in others:
                events = [event async for event in quick.Generate(turn(session_id))]
                assert events[-1].WhichOneof("event") == "finished"
        assert front.manager.running.is_busy(stuck)  # it waits for its reader, with the rest of its turn
        token_ids = list(first.delta.token_ids)
        while (event := await stream.read()) is not grpc.aio.EOF:
            last = event
            token_ids += event.delta.token_ids
        assert len(token_ids) == MANY + 1
        assert last.finished.tokens_committed == MANY + 1 + 2


async def test_deadlines_reach_the_engine(front: Any) -> None:
    async with grpc.aio.insecure_channel(front.target) as channel:
        stub = SessionServiceStub(channel)
        session_id = await opened(stub)
        async for _ in stub.Generate(turn(session_id), timeout=30):
            pass
        await stub.Append(pb.AppendRequest(session_id=session_id, input=pb.TurnInput(text="x")), timeout=20)
        async for _ in stub.Generate(turn(session_id)):
            pass
        deadlines = [submitted.deadline_s for submitted in front.engine.submitted]
        assert 20 < deadlines[0] < 31  # gRPC adds a moment
        assert 10 < deadlines[1] < 21
        assert deadlines[2] is None


async def test_a_passed_deadline_and_a_cancel_end_the_turn(front: Any) -> None:
    async with grpc.aio.insecure_channel(front.target) as channel:
        stub = SessionServiceStub(channel)
        session_id = await opened(stub)
        front.engine.will_say([64, 65, 66], gate=asyncio.Event())
        with pytest.raises(grpc.aio.AioRpcError) as late:
            async for _ in stub.Generate(turn(session_id), timeout=0.3):
                pass
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await front.engine.idle.wait()
        front.engine.will_say([64, 65, 66], gate=asyncio.Event())
        call = stub.Generate(turn(session_id))
        await call.read()
        call.cancel()
        await front.engine.idle.wait()
        assert len(front.engine.aborted) == 2
        assert (await stub.Get(pb.GetRequest(session_id=session_id))).session.version == 1
