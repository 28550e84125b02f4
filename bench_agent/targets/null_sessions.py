"""A null server that speaks as much of Sessile's gRPC protocol as the driver needs: sessions that only grow.

It keeps HTTP/2's streams itself (h2): only who reads the socket knows when a request came in, and sends a piece in the
moment that the piece tells. gRPC's own server does both in threads of its own, later.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count

import h2.config
import h2.connection
import h2.events
from google.protobuf.message import Message

from ...server.proto import session_pb2 as pb
from ..arrival_stamps import StampedSocket, StampedSockets
from .null_pace import Pace

_PREFIX = struct.Struct(">BI")  # of a message: whether it is compressed, and its length
_OK, _UNIMPLEMENTED = "0", "12"


class NullSessionServer:
    """Answers on one port of the loopback interface. Made and used inside one event loop."""

    def __init__(self, pace: Pace) -> None:
        self._calls = _Calls(pace)
        self._sockets = StampedSockets()
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; returns the port."""
        listener = self._sockets.listening("127.0.0.1")
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self._calls, self._sockets, self._connections), sock=listener
        )
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """Listen no more, and break off what runs."""
        if self._server is not None:
            self._server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.lost for connection in connections))


class _Calls:
    """What is answered to each call. Knows how many turns each session had."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._turns: dict[str, int] = {}
        self._numbers = count(1)

    async def answers(self, name: str, body: bytes, received: float) -> AsyncIterator[Message]:
        """The messages that answer a call, each when it is due. Raises LookupError for a call that is not known."""
        match name:
            case "Open":
                session = f"null-{next(self._numbers)}"
                self._turns[session] = 0
                yield pb.OpenResponse(session=pb.Session(session_id=session, version=1))
            case "Close":
                self._turns.pop(pb.CloseRequest.FromString(body).session_id, None)
                yield pb.CloseResponse()
            case "Generate":
                request = pb.GenerateRequest.FromString(body)
                tokens = request.sampling.max_tokens
                async for stamps in self._pace.pieces(received, tokens):
                    yield pb.GenerateResponse(delta=pb.TextDelta(text=stamps, token_ids=[0]))
                yield self._finished(request.session_id, tokens)
            case _:
                raise LookupError(name)

    def _finished(self, session: str, tokens: int) -> pb.GenerateResponse:
        turn = self._turns[session] = self._turns.get(session, 0) + 1
        finished = pb.TurnFinished(
            finish_reason=pb.FINISH_REASON_LENGTH,
            stop_cause=pb.STOP_CAUSE_LENGTH,
            usage=pb.Usage(prompt_tokens=1, completion_tokens=tokens),
            version=1 + turn,
            turn=turn,
        )
        return pb.GenerateResponse(finished=finished)


@dataclass(slots=True)
class _Stream:
    """A call while it is read and answered."""

    name: str
    body: bytearray = field(default_factory=bytearray)
    answering: asyncio.Task[None] | None = None


class _Connection(asyncio.Protocol):
    """One client's streams of HTTP/2 (RFC 9113), a gRPC call each. It is in ``connections`` while it is open."""

    def __init__(self, calls: _Calls, sockets: StampedSockets, connections: set[_Connection]) -> None:
        config = h2.config.H2Configuration(client_side=False)
        self._http = h2.connection.H2Connection(config)
        self._calls = calls
        self._sockets = sockets
        self._connections = connections
        self._streams: dict[int, _Stream] = {}
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """Hang up; ``lost`` is done when that is over."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        stamped = self._sockets.under(transport)
        assert stamped is not None
        stamped.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport: asyncio.Transport = transport
        self._socket: StampedSocket = stamped
        self._connections.add(self)
        self._http.initiate_connection()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        for number in list(self._streams):
            self._drop(number)
        self._connections.discard(self)
        self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        received = self._socket.came_in(time.perf_counter)
        for event in self._http.receive_data(data):
            match event:
                case h2.events.RequestReceived(stream_id=int(number), headers=headers):
                    path = dict(headers or ())[b":path"].decode()
                    self._streams[number] = _Stream(path.rpartition("/")[2])
                case h2.events.DataReceived(stream_id=int(number), data=piece):
                    self._http.acknowledge_received_data(event.flow_controlled_length or 0, number)
                    self._streams[number].body += piece or b""
                case h2.events.StreamEnded(stream_id=int(number)):
                    stream = self._streams[number]
                    stream.answering = asyncio.ensure_future(self._answer(number, stream, received))
                case h2.events.StreamReset(stream_id=int(number)):
                    self._drop(number)
        self._flush()

    async def _answer(self, number: int, stream: _Stream, received: float) -> None:
        status = _OK
        self._http.send_headers(number, [(":status", "200"), ("content-type", "application/grpc")])
        try:
            async for message in self._calls.answers(stream.name, bytes(stream.body[_PREFIX.size :]), received):
                said = message.SerializeToString()
                self._http.send_data(number, _PREFIX.pack(0, len(said)) + said)
                self._flush()
        except LookupError:
            status = _UNIMPLEMENTED
        self._http.send_headers(number, [("grpc-status", status)], end_stream=True)
        self._flush()
        del self._streams[number]

    def _drop(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None and stream.answering is not None:
            stream.answering.cancel()

    def _flush(self) -> None:
        self._transport.write(self._http.data_to_send())
