"""Requests to a whole front, over HTTP and gRPC, with a scripted engine behind it: each gets an answer, none a 500."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import json_changes
import message_changes
from fuzzing import Feed, Target
from live_front import live_front
from open_gate import open_gate

from sessile.server.proto import session_pb2 as pb
from sessile.server.rpc.grpc_config import GrpcConfig
from sessile.server.rpc.rpc_server import RpcServer

SECONDS = 20.0  # for one answer
BODIES: tuple[tuple[str, str, dict[str, Any]], ...] = tuple(
    (one["method"], one["path"], one["body"])
    for one in json.loads(Path(__file__).with_name("http_requests.json").read_text())
)
assert len(BODIES) < 256


class BadAnswer(AssertionError):
    """An answer that no client's fault explains."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("sessile")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def _http() -> Iterator[Feed]:
    """The input: which request, its path after a zero byte where that is changed too, and its body."""
    with tempfile.TemporaryDirectory() as name, asyncio.Runner() as runner, _quiet():
        stack = contextlib.AsyncExitStack()
        front = runner.run(stack.enter_async_context(live_front(Path(name) / "data")))
        session = runner.run(front.client.post("/v1/sessions", json={})).json()["session_id"]

        async def ask(method: str, path: str, body: bytes) -> None:
            async with asyncio.timeout(SECONDS):
                answer = await front.client.request(
                    method, path, content=body or None, headers={"content-type": "application/json"}
                )
                if answer.status_code >= 500:
                    raise BadAnswer(f"{answer.status_code} of {method} {path.partition('?')[0]}: {answer.text[:200]}")

        def feed(content: bytes) -> None:
            index = content[0] % len(BODIES) if content else 0
            method, path, _ = BODIES[index]
            changed_path, zero, body = content[1:].partition(b"\0")
            if zero and changed_path:
                path = _path_of(changed_path)
            runner.run(ask(method, path.replace("SESSION", session), body if zero else content[1:]))

        yield feed
        runner.run(stack.aclose())


def _path_of(raw: bytes) -> str:
    """A path that an HTTP client can send."""
    return "/" + "".join(character for character in raw.decode("latin-1") if "!" <= character <= "~")[:500].lstrip("/")


def _http_seeds() -> list[bytes]:
    return [bytes([index]) + b"\0" + json.dumps(body).encode() for index, (_, _, body) in enumerate(BODIES)]


def _change_http(content: bytes, rng: random.Random) -> bytes:
    head, _, body = content[1:].partition(b"\0")
    if rng.random() < 0.15:
        path = bytearray(BODIES[content[0] % len(BODIES)][1].encode())
        at = rng.randrange(1, len(path) + 1)
        path[at : at + rng.choice((0, 1, 5))] = rng.choice(
            (
                b"",
                b"%00",
                b"..",
                b"%2e%2e/",
                b"-1",
                b"999999999999999999999",
                b"a" * 400,
                b"?x=1",
                b"%ff",
                b"=NaN",
                b"&limit=-1",
            )
        )
        head = bytes(path)
    return content[:1] + head + b"\0" + json_changes.changed(body, rng)


# -- gRPC ------------------------------------------------------------------------------------------------------------

_HI = pb.Message(role=pb.ROLE_USER, content="hi")
_INPUT = pb.TurnInput(messages=pb.MessageList(messages=[_HI]))
_TOOLS = [pb.Tool(name="f", description="d", parameters_json='{"type": "object"}')]
MESSAGES: tuple[tuple[str, Any], ...] = (
    ("Open", pb.OpenRequest(tenant="a", system="be", tools=_TOOLS, request_id="r")),
    ("Append", pb.AppendRequest(session_id="SESSION", input=_INPUT, request_id="a")),
    ("Generate", pb.GenerateRequest(session_id="SESSION", input=_INPUT)),
    ("Fork", pb.ForkRequest(session_id="SESSION", request_id="f")),
    ("Rollback", pb.RollbackRequest(session_id="SESSION")),
    ("Close", pb.CloseRequest(session_id="x")),
    ("Get", pb.GetRequest(session_id="SESSION")),
    ("List", pb.ListRequest()),
    ("ListTurns", pb.ListTurnsRequest(session_id="SESSION")),
    ("Hint", pb.HintRequest(session_id="SESSION", hint=pb.Hint(retain=pb.Retain()))),
    ("Suspend", pb.SuspendRequest(session_id="SESSION")),
    ("Resume", pb.ResumeRequest(session_id="SESSION")),
    ("Export", pb.ExportRequest(session_id="SESSION")),
    ("Import", pb.ImportRequest(chunk=b"sessile session\n")),
)
_FAULTS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


@contextlib.contextmanager
def _grpc() -> Iterator[Feed]:
    """The input: which method, and a message's bytes."""
    with tempfile.TemporaryDirectory() as name, asyncio.Runner() as runner, _quiet():
        stack = contextlib.AsyncExitStack()
        front = runner.run(stack.enter_async_context(live_front(Path(name) / "data")))

        async def start() -> tuple[RpcServer, grpc.aio.Channel, str]:
            server = RpcServer(front.manager, open_gate(), GrpcConfig(port=0))
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{await server.start()}")
            opened = pb.OpenResponse.FromString(await call(channel, "Open", b""))
            return server, channel, opened.session.session_id

        async def call(channel: grpc.aio.Channel, method: str, content: bytes) -> bytes:
            path = f"/{pb.DESCRIPTOR.services_by_name['SessionService'].full_name}/{method}"
            if method == "Import":
                return bytes(await channel.stream_unary(path)(iter([content]), timeout=SECONDS))
            if method in ("Generate", "Export"):
                return b"".join([part async for part in channel.unary_stream(path)(content, timeout=SECONDS)])
            return bytes(await channel.unary_unary(path)(content, timeout=SECONDS))

        server, channel, session = runner.run(start())

        async def ask(method: str, content: bytes) -> None:
            try:
                await call(channel, method, content)
            except grpc.aio.AioRpcError as error:
                if error.code() in _FAULTS or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise BadAnswer(f"{error.code()} of {method}: {error.details()}") from error

        def feed(content: bytes) -> None:
            method, _ = MESSAGES[content[0] % len(MESSAGES) if content else 0]
            # A session's id keeps its length, so that the message around it stays whole.
            placed = content[1:].replace(_PLACE.encode(), session.encode().ljust(len(_PLACE))[: len(_PLACE)])
            runner.run(ask(method, placed))

        yield feed

        async def stop() -> None:
            await channel.close()
            await server.stop(0)
            await stack.aclose()

        runner.run(stop())


_PLACE = "SESSION"


def _grpc_seeds() -> list[bytes]:
    return [bytes([index]) + message.SerializeToString() for index, (_, message) in enumerate(MESSAGES)]


def _change_message(content: bytes, rng: random.Random) -> bytes:
    kind = type(MESSAGES[content[0] % len(MESSAGES)][1])
    try:
        message = kind.FromString(content[1:])
    except Exception:
        message = kind()
    return content[:1] + message_changes.changed(message, rng).SerializeToString()


TARGETS = (
    Target("http", _http, _http_seeds, (), mutate=_change_http),
    Target("grpc", _grpc, _grpc_seeds, (), mutate=_change_message),
)
