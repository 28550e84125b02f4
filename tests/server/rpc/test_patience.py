"""Clients that stop sending in the middle of a request, or stop reading in the middle of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_calls import LONG_S, NO_WINDOW, SERVICE, bounded, calling, ends, failure, opened, turn
from open_gate import open_gate
from scripted_engine import ScriptedEngine

from sessile.server.proto import session_pb2 as pb
from sessile.server.proto.session_pb2_grpc import SessionServiceStub
from sessile.server.rpc.grpc_config import GrpcConfig
from sessile.server.rpc.rpc_server import RpcServer
from sessile.sessions.manager.events import EventsLost, SessionEvent


async def test_a_request_that_does_not_come_is_not_waited_for(front: Any) -> None:
    await bounded(front, send_timeout_s=1.0)  # also to open the connection
    async with asyncio.timeout(LONG_S), grpc.aio.insecure_channel(front.target) as channel:
        one, many = channel.stream_unary(f"{SERVICE}/Open")(), channel.stream_stream(f"{SERVICE}/Generate")()
        for code, details in (await failure(one), await ends(many)):
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "no message came for 1 s" in details
        nothing = channel.stream_unary(f"{SERVICE}/Open")()
        await nothing.done_writing()
        code, details = await failure(nothing)
        assert (code, details) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "the call has no request (send one message)",
        )
    assert front.engine.submitted == []


async def test_an_import_that_stops_is_given_up_and_leaves_nothing(front: Any) -> None:
    await bounded(front, send_timeout_s=1.0)
    async with calling(front) as stub:
        imported = stub.Import()
        await imported.write(pb.ImportRequest(header=pb.ImportHeader()))
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # if the time is over already
            await imported.write(pb.ImportRequest(chunk=b"ses"))
        code, _ = await failure(imported)
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert not (await stub.List(pb.ListRequest())).sessions
    assert list((front.folder / "transfer").iterdir()) == []
    assert front.manager.running.in_hand == 0


async def test_a_request_may_take_its_time_as_long_as_it_comes(front: Any) -> None:
    await bounded(front, send_timeout_s=5.0)
    async with calling(front) as stub:
        session_id = await opened(stub)
        chunks = [response.chunk async for response in stub.Export(pb.ExportRequest(session_id=session_id))]
        imported = stub.Import()
        await imported.write(pb.ImportRequest(header=pb.ImportHeader()))
        for byte in b"".join(chunks):
            await imported.write(pb.ImportRequest(chunk=bytes((byte,))))
        await imported.done_writing()
        assert (await imported).session.session_id != session_id


async def test_the_turn_of_a_client_that_never_reads_ends_and_others_go_on(front: Any) -> None:
    front.engine = ScriptedEngine(context_length=100_000)
    await bounded(front, read_timeout_s=1.0)  # for the quick one too
    async with calling(front, *NO_WINDOW) as slow, calling(front) as quick:
        session_id, other = await opened(slow), await opened(quick)
        front.engine.will_say([64] * 20_000 + [257])
        stuck = slow.Generate(turn(session_id, sampling=pb.SamplingParams(logprobs=0)))
        await stuck.read()
        await front.engine.idle.wait()
        assert len(front.engine.aborted) == 1
        while front.manager.running.is_busy(session_id):
            await asyncio.sleep(0.005)
        for one in (session_id, other):  # its place is free, also in the session
            events = [event async for event in quick.Generate(turn(one))]
            assert events[-1].WhichOneof("event") == "finished"
        code, details = await ends(stuck)  # it reads on, and learns what became of its turn
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "was not read for 1 s" in details


async def test_a_client_that_goes_away_instead_of_reading_leaves_nothing(front: Any) -> None:
    front.engine = ScriptedEngine(context_length=100_000)
    await bounded(front, read_timeout_s=0.2)
    async with calling(front, *NO_WINDOW) as slow:
        session_id = await opened(slow)
        front.engine.will_say([64] * 20_000 + [257])
        stuck = slow.Generate(turn(session_id, sampling=pb.SamplingParams(logprobs=0)))
        await stuck.read()
        await front.engine.idle.wait()
        stuck.cancel()
    async with asyncio.timeout(LONG_S):
        await front.server.stop(LONG_S)  # waits for calls


async def test_a_client_that_reads_slowly_is_waited_for(front: Any) -> None:
    """It is the time for one event that counts, not for all of them."""
    front.engine = ScriptedEngine(context_length=100_000)
    await bounded(front, read_timeout_s=5.0)
    async with calling(front, *NO_WINDOW) as slow:
        session_id = await opened(slow)
        front.engine.will_say([64] * 3_000 + [257])
        events = []
        async for event in slow.Generate(turn(session_id, sampling=pb.SamplingParams(logprobs=0))):
            events.append(event)
            if len(events) % 300 == 0:
                await asyncio.sleep(0.02)
        assert events[-1].WhichOneof("event") == "finished"


@dataclass
class Endless:
    """Sessions whose watches and exports never end by themselves."""

    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def _endless(self, item: Any) -> AsyncGenerator[Any, None]:
        try:
            while True:
                yield item
        finally:
            self.closed.set()

    def watch(self, _: Any) -> AsyncGenerator[SessionEvent, None]:
        return self._endless(SessionEvent(at=0.0, what=EventsLost(events=1)))

    def export(self, _: Any) -> AsyncGenerator[bytes, None]:
        return self._endless(bytes(1_000_000))


@pytest.mark.parametrize(
    ("method", "request_"), [("Watch", pb.WatchRequest()), ("Export", pb.ExportRequest(session_id="s"))]
)
async def test_watches_and_exports_that_nobody_reads_are_closed(method: str, request_: Any) -> None:
    sessions = Endless()
    server = RpcServer(sessions, open_gate(), GrpcConfig(port=0, read_timeout_s=0.2))  # type: ignore[arg-type]
    target = f"127.0.0.1:{await server.start()}"
    async with asyncio.timeout(LONG_S), grpc.aio.insecure_channel(target, options=list(NO_WINDOW)) as channel:
        call = getattr(SessionServiceStub(channel), method)(request_)
        await call.read()
        await sessions.closed.wait()
        code, _ = await ends(call)
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    await server.stop(0)
