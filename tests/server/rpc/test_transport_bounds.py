"""What one connection may cost: metadata, messages, calls, pings and silence."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_calls import LONG_S, SERVICE, bounded, calling, failure, opened, turn
from raw_http2 import ACK, ENHANCE_YOUR_CALM, GOAWAY, PING, REFUSED_STREAM, RST_STREAM, raw_http2

from sessile.server.client import AsyncSessionClient, RetryPolicy
from sessile.server.proto import session_pb2 as pb
from sessile.server.proto.session_pb2_grpc import SessionServiceStub
from sessile.sessions.manager.requests import OpenSession


async def test_metadata_is_bounded(front: Any) -> None:
    """Also where gRPC's own bound would let it through, or would not."""
    for bound, most, too_much in ((2048, 1000, 3000), (65_536, 40_000, 66_000)):
        await bounded(front, max_metadata_bytes=bound)
        async with calling(front) as stub:

            def opening(length: int) -> Any:
                return stub.Open(pb.OpenRequest(), metadata=(("x-a", "a" * length),))

            # Between two bounds gRPC would refuse by chance; it takes its time over a refusal.
            refused = await asyncio.gather(*(failure(opening(too_much)) for _ in range(8)))
            assert {code for code, _ in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            assert await opening(most)


async def test_messages_are_bounded(front: Any) -> None:
    await bounded(front, max_message_bytes=4096)
    async with calling(front) as stub:
        assert await stub.Open(pb.OpenRequest(system="a" * 4000))
        code, _ = await failure(stub.Open(pb.OpenRequest(system="a" * 5000)))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_calls_beyond_the_bound_wait_at_their_client_and_are_served_later(front: Any) -> None:
    await bounded(front, max_streams=2)
    gate = asyncio.Event()
    patient = RetryPolicy(max_attempts=1000, sleep=front.sleeps)  # at the bound gRPC may try too early, and is refused
    async with calling(front) as other, AsyncSessionClient(front.target, retry=patient) as client:
        sessions = [await client.open() for _ in range(4)]
        for _ in sessions:
            front.engine.will_say([64, 257], gate=gate)
        turns = [asyncio.ensure_future(session.generate(messages="hi").wait()) for session in sessions]
        while len(front.engine.submitted) < 2:
            await asyncio.sleep(0.005)
        for session in sessions:  # another connection is not concerned
            await other.Get(pb.GetRequest(session_id=session.session_id))
        assert len(front.engine.submitted) == 2
        gate.set()
        assert [finished.turn for finished in await asyncio.gather(*turns)] == [1, 1, 1, 1]


async def test_a_client_that_does_not_wait_is_refused(front: Any) -> None:
    await bounded(front, max_streams=2)
    async with asyncio.timeout(LONG_S), raw_http2(front.port) as client:
        await client.settle()
        for stream in (1, 3, 5):
            client.call(stream, f"{SERVICE}/Open")
        while (frame := await client.next()) is not None:
            if frame.kind == RST_STREAM:
                break
        assert frame is not None
        assert (frame.stream, frame.error_code) == (5, REFUSED_STREAM)


async def test_connections_are_bounded(front: Any) -> None:
    await bounded(front, max_connections=2)
    async with asyncio.timeout(LONG_S), raw_http2(front.port) as second:
        async with raw_http2(front.port) as first:
            await first.settle()
            await second.settle()
            async with raw_http2(front.port) as third:
                third.greet()
                assert await third.rest() == []
        while True:  # the place of one that went is free
            async with raw_http2(front.port) as later:
                later.greet()
                if await later.next() is not None:
                    break


async def test_pings_in_time_are_answered_and_a_flood_of_them_is_not(front: Any) -> None:
    await bounded(front, ping_interval_s=0.02)
    async with asyncio.timeout(LONG_S), raw_http2(front.port) as client:
        await client.settle()
        for _ in range(6):
            await asyncio.sleep(0.04)
            client.send(PING, payload=b"in  time")
            while (frame := await client.next()) is not None and frame.kind != PING:
                assert frame.kind != GOAWAY
            assert frame is not None
    await bounded(front, ping_interval_s=30.0)
    async with asyncio.timeout(LONG_S), raw_http2(front.port) as client:
        await client.settle()
        for _ in range(6):
            client.send(PING, payload=b"too soon")
            while (frame := await client.next()) is not None and frame.kind not in (PING, GOAWAY):
                pass
            if frame is None or frame.kind == GOAWAY:
                break
        assert frame is not None
        assert (frame.kind, frame.error_code) == (GOAWAY, ENHANCE_YOUR_CALM)


@pytest.mark.parametrize("answered", [0, 1])
async def test_a_client_whose_machine_is_gone_ends_its_turn(front: Any, answered: int) -> None:
    """Whether it goes while gRPC measures the connection, which it does with a ping as well, or later."""
    await bounded(front, keepalive_s=1.0, keepalive_timeout_s=1.0)
    session_id = (await front.manager.open(OpenSession())).session_id
    front.engine.will_say([64, 257], gate=asyncio.Event())
    async with asyncio.timeout(LONG_S), raw_http2(front.port) as client:
        await client.settle()
        client.call(1, f"{SERVICE}/Generate", turn(session_id).SerializeToString())
        while not front.engine.submitted:
            await asyncio.sleep(0.005)
        for _ in range(answered):
            while (frame := await client.next()) is not None and frame.kind != PING:
                pass
            assert frame is not None
            client.send(PING, ACK, payload=frame.payload)
        await front.engine.idle.wait()  # it answers no other ping
    assert len(front.engine.aborted) == 1
    assert (await front.manager.get(session_id, "")).version == 1


async def test_a_connection_on_which_nothing_is_said_is_closed(front: Any) -> None:
    await bounded(front, send_timeout_s=0.1)
    async with asyncio.timeout(LONG_S), raw_http2(front.port) as client:
        assert (await client.rest())[-1].kind == GOAWAY


async def test_an_idle_connection_is_closed_and_the_next_call_has_a_new_one(front: Any) -> None:
    await bounded(front, idle_s=1.0)
    async with asyncio.timeout(LONG_S), raw_http2(front.port) as client:
        await client.settle()
        assert (await client.rest())[-1].kind == GOAWAY
    async with asyncio.timeout(LONG_S), grpc.aio.insecure_channel(front.target) as channel:
        for _ in range(2):
            await opened(SessionServiceStub(channel))
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
