"""A null server that speaks as much of Sessile's gRPC protocol as the driver needs: sessions that only grow."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import grpc.aio

from ...server.proto import session_pb2 as pb
from ...server.proto.session_pb2_grpc import SessionServiceServicer, add_SessionServiceServicer_to_server
from .null_pace import Pace


class NullSessionServer(SessionServiceServicer):
    """Answers on one port of the loopback interface. Made and used inside one event loop."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._turns: dict[str, int] = {}
        self._numbers = count(1)
        self._server = grpc.aio.server()

    async def start(self) -> int:
        """Listen; returns the port."""
        add_SessionServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return port

    async def stop(self) -> None:
        """End, and break off what runs."""
        await self._server.stop(None)

    async def Open(self, request: pb.OpenRequest, context: Any) -> pb.OpenResponse:  # noqa: N802
        """A session without turns."""
        name = f"null-{next(self._numbers)}"
        self._turns[name] = 0
        return pb.OpenResponse(session=pb.Session(session_id=name, version=1))

    async def Close(self, request: pb.CloseRequest, context: Any) -> pb.CloseResponse:  # noqa: N802
        """The session is forgotten."""
        self._turns.pop(request.session_id, None)
        return pb.CloseResponse()

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:  # noqa: N802
        """``max_tokens`` pieces at the server's pace."""
        received = time.perf_counter()
        tokens = request.sampling.max_tokens
        async for stamps in self._pace.pieces(received, tokens):
            yield pb.GenerateResponse(delta=pb.TextDelta(text=stamps, token_ids=[0]))
        turn = self._turns[request.session_id] = self._turns.get(request.session_id, 0) + 1
        yield pb.GenerateResponse(
            finished=pb.TurnFinished(
                finish_reason=pb.FINISH_REASON_LENGTH,
                stop_cause=pb.STOP_CAUSE_LENGTH,
                usage=pb.Usage(prompt_tokens=1, completion_tokens=tokens),
                version=1 + turn,
                turn=turn,
            )
        )
