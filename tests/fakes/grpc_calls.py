"""Short ways to call a front over gRPC, and to see how calls fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from sessile.server.proto import session_pb2 as pb
from sessile.server.proto.session_pb2_grpc import SessionServiceStub
from sessile.server.rpc.grpc_config import GrpcConfig

SERVICE = "/sessile.v1.SessionService"
LONG_S = 60.0  # no test waits for it unless what it tests is missing
NO_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16_384))
ALONE = ("grpc.use_local_subchannel_pool", 1)  # a connection of its own


async def bounded(front: Any, **bounds: Any) -> None:
    """Start the front again, with ``bounds``, on another port: the old one may be anyone's by then."""
    front.bounds = GrpcConfig(**bounds)
    front.port = 0
    await front.restart()


@asynccontextmanager
async def calling(front: Any, *options: tuple[str, int]) -> AsyncIterator[Any]:
    async with asyncio.timeout(LONG_S), grpc.aio.insecure_channel(front.target, options=[ALONE, *options]) as channel:
        yield SessionServiceStub(channel)


async def opened(stub: Any) -> str:
    session_id: str = (await stub.Open(pb.OpenRequest())).session.session_id
    return session_id


def turn(session_id: str, **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(session_id=session_id, input=pb.TurnInput(text="hi"), **fields)


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value.code(), failed.value.details() or ""


async def ends(call: Any) -> tuple[grpc.StatusCode, str]:
    """As ``failure``, of a call whose answer is a stream that is read on now."""

    async def read() -> None:
        while await call.read() is not grpc.aio.EOF:
            pass

    return await failure(read())
