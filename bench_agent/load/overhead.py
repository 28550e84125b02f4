"""What the harness adds to what it measures: a load against the null server, whose times are known exactly."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import numpy as np

from ..driver.ask import Ask, Conversation, Driver
from ..driver.dialects import dialect_named
from ..driver.observation import Observation
from ..driver.openai_http import OpenAiDriver
from ..driver.session_grpc import SessionDriver
from ..errors import TargetError
from ..targets.null_pace import Pace, told_stamps
from ..workload.distributions import Distribution, Shape, fixed
from ..workload.synthetic import AgentShape, synthetic_workload
from .collector import collector_off
from .runner import LoadRunner
from .shape import LoadShape

TTFT_S, TPOT_S = 0.05, 0.02


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds by which the harness's stamps were late on one ``wire``, "http" or "grpc".

    ``ttft``: from the turn's start until the server had the request, and from the first piece's sending to its stamp;
    ``piece``: from a piece's sending to its stamp. Both hold the loopback connection too, by gRPC also the SDK's own
    work. A session's first turn, which opens its connection, is not counted.
    """

    wire: str
    sessions: int
    turns: int
    pieces: int
    pieces_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    piece_p50_s: float
    piece_p99_s: float


async def measure_overhead(sessions: int, seconds: float, *, wire: str = "http", seed: int = 0) -> Overhead:
    """``sessions`` sessions at a time for ``seconds``, over a driver's ``wire``.

    Raises TargetError when the null server does not start, or no session gets to its second turn.
    """
    async with null_server(wire, Pace(TTFT_S, TPOT_S)) as address:
        return await _measure(_driver(wire, address), sessions, seconds, seed)


@asynccontextmanager
async def null_server(wire: str, pace: Pace) -> AsyncIterator[str]:
    """A null server in a process of its own; its ``HOST:PORT``. Raises TargetError when it does not start."""
    command = [sys.executable, "-m", "sessile.bench_agent.targets.null_server"]
    command += ["--wire", wire, "--ttft", str(pace.ttft_s), "--tpot", str(pace.tpot_s)]
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert server.stdout is not None
    try:
        line = await server.stdout.readline()
        if not line.strip().isdigit():
            raise TargetError("the null server did not start")
        yield f"127.0.0.1:{int(line)}"
    finally:
        await server.communicate(b"")  # closes its input, which ends it, and reads what it says until then


def _driver(wire: str, address: str) -> Driver:
    if wire == "grpc":
        return SessionDriver(address)
    return OpenAiDriver(f"http://{address}", model=None, dialect=dialect_named("openai"))


async def _measure(driver: Driver, sessions: int, seconds: float, seed: int) -> Overhead:
    shape = AgentShape(
        system_tokens=1000,
        turns=fixed(6),
        tool_result_tokens=fixed(150),
        output_tokens=fixed(48),
        gap_s=Distribution(Shape.UNIFORM, 0.0, 0.4),
    )
    workload = synthetic_workload("null", shape, sessions=sessions, seed=seed)
    listener = _Listener(driver)
    try:
        load = LoadShape(concurrency=sessions, duration_s=seconds + 1.0, ramp_s=1.0, seed=seed)
        with collector_off():
            outcome = await LoadRunner(workload, listener, load).run()
    finally:
        await listener.close()
    if not listener.first_late:
        raise TargetError("no turn against the null server was done")
    ttft = np.percentile(listener.first_late, [50, 99])
    piece = np.percentile(listener.late, [50, 99])
    return Overhead(
        wire=listener.wire,
        sessions=sessions,
        turns=len(listener.first_late),
        pieces=len(listener.late),
        pieces_per_s=sum(len(turn.arrivals_s) for turn in outcome.turns) / max(outcome.repeats[0].wall_s, 1e-9),
        ttft_p50_s=float(ttft[0]),
        ttft_p99_s=float(ttft[1]),
        piece_p50_s=float(piece[0]),
        piece_p99_s=float(piece[1]),
    )


class _Listener:
    """A driver around another that compares each stamp with the time the piece says it was sent."""

    def __init__(self, driver: Driver) -> None:
        self.wire = driver.wire
        self._driver = driver
        self.first_late: list[float] = []
        self.late: list[float] = []

    def conversation(self, session_id: str) -> Conversation:
        return _ListenedConversation(self, self._driver.conversation(session_id))

    async def close(self) -> None:
        await self._driver.close()

    def heard(self, seen: Observation) -> None:
        if not seen.pieces:
            return
        received, sent = told_stamps(seen.pieces)
        late = [at - stamp for (at, _), stamp in zip(seen.arrivals, sent, strict=True)]
        self.first_late.append(received - seen.started + late[0])
        self.late += late


class _ListenedConversation:
    def __init__(self, listener: _Listener, conversation: Conversation) -> None:
        self._listener = listener
        self._conversation = conversation

    async def turn(self, ask: Ask, seen: Observation) -> None:
        await self._conversation.turn(ask, seen)
        if ask.index:
            self._listener.heard(seen)

    async def close(self) -> None:
        await self._conversation.close()
