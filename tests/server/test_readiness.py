"""What probes are told in each state of a server, and that it is true."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from live_front import live_front

from sessile.server.client import AsyncSessionClient, RetryPolicy
from sessile.server.engine.messages import EngineStats, TierCounters
from sessile.server.engine.supervisor import EngineState
from sessile.server.engine.tier_counters import tier_counters
from sessile.server.front import Front as StartedFront
from sessile.server.readiness import ServerState, readiness
from sessile.server.web.names import ServedName
from sessile.sessions.cache.tiers import Tier, TierStats
from sessile.sessions.errors import Draining, EngineError, SessileError, StoreError, StoreUnavailable
from sessile.sessions.store.health import StoreHealth

FULL = StoreUnavailable("the disk of the session store is full", remedy="free space", retry_after_s=5.0)
DISK_OFF = tier_counters(Tier.DISK, TierStats(0, 0, 0, unavailable="writing fails: No space left on device"), None)


class Engine:
    def __init__(self, state: EngineState, error: SessileError | None = None, tiers: tuple[TierCounters, ...] = ()):
        self.state, self._error, self.stats = state, error, EngineStats(tiers=tiers)

    @property
    def info(self) -> Any:
        if self._error is not None:
            raise self._error
        return SimpleNamespace(model="tiny")


def admit() -> None:
    pass


def drain() -> None:
    raise Draining("the server is shutting down", retry_after_s=5.0)


LOADING = EngineError("the engine is starting", retry_after_s=2.0)
READY, RESTARTING, FAILED = EngineState.READY, EngineState.RESTARTING, EngineState.FAILED


@pytest.mark.parametrize(
    ("engine", "admission", "failure", "state", "words"),
    [
        (Engine(EngineState.STARTING, LOADING), admit, None, ServerState.STARTING, "starting"),
        (Engine(READY), admit, None, ServerState.READY, "tiny is loaded"),
        (Engine(RESTARTING), admit, None, ServerState.RESTARTING, "restarting"),
        (Engine(FAILED, EngineError("no memory")), admit, None, ServerState.FAILED, "no memory"),
        (Engine(READY), drain, None, ServerState.DRAINING, "shutting down"),
        (Engine(READY), drain, FULL, ServerState.DRAINING, "shutting down"),
        (Engine(READY), admit, FULL, ServerState.DEGRADED, "sessions not kept: the disk of the session store is full"),
        (Engine(READY), admit, StoreError("damaged"), ServerState.DEGRADED, "sessions not kept: damaged"),
        (Engine(READY, tiers=(DISK_OFF,)), admit, None, ServerState.DEGRADED, "KV not kept: writing fails: No space"),
        (Engine(RESTARTING), admit, FULL, ServerState.RESTARTING, "restarting"),
    ],
)
def test_each_state_is_told(engine: Engine, admission: Any, failure: Any, state: ServerState, words: str) -> None:
    now = readiness(engine, admission, lambda: failure)
    assert now.state is state
    assert words in now.reason
    assert now.takes_turns == (state in (ServerState.READY, ServerState.DEGRADED))
    assert now.takes_turns or now.retry_after_s > 0
    assert now.takes_changes == (now.takes_turns and not failure)


@dataclass
class Disk:
    """Whether the store finds room on it."""

    is_full: bool = False

    def require_room(self) -> None:
        if self.is_full:
            raise FULL


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(StoreHealth, "require_room", lambda _: disk.require_room())
    return disk


async def test_a_failing_store_refuses_sessions_before_anything_is_computed_and_stateless_turns_go_on(
    tmp_path: Path, disk: Disk
) -> None:
    async with live_front(tmp_path) as live:
        store = live.manager._store
        health = store._writer.database.file.health
        disk.is_full = True
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
        session = (await live.client.post("/v1/sessions", json={})).json()["session_id"]
        await store.prune(0.0)  # what else was to be written is
        health.failed(FULL)
        turns = len(live.engine.submitted)

        refused = await live.client.post(f"/v1/sessions/{session}/generate", json={"messages": body["messages"]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert refused.headers["retry-after"] == "5"
        assert len(live.engine.submitted) == turns, "nothing was computed for it"
        stored = await live.client.post("/v1/responses", json={"model": "scripted", "input": "x"})
        assert stored.status_code == 503
        assert '"store": false' in stored.json()["error"]["message"]

        assert (await live.client.post("/v1/chat/completions", json=body)).status_code == 200
        unstored = await live.client.post("/v1/responses", json={"model": "scripted", "input": "x", "store": False})
        assert unstored.status_code == 200
        assert (await live.client.get(f"/v1/sessions/{session}")).status_code == 200, "what is there can be read"

        ready = await live.client.get("/ready")
        assert ready.status_code == 200
        assert ready.json()["state"] == "degraded"
        assert "is full" in ready.json()["persistence"]["sessions"]
        assert "sessile_sessions_kept 0" in (await live.client.get("/metrics")).text

        disk.is_full = False
        await until_writable(store)
        again = await live.client.post(f"/v1/sessions/{session}/generate", json={"messages": body["messages"]})
        assert again.status_code == 200
        assert (await live.client.get("/ready")).json()["state"] == "ready"


async def until_writable(store: Any) -> None:
    """Asking finds out: the file itself is well."""
    while store.failure is not None:
        await asyncio.sleep(0.02)


async def test_grpcs_health_says_the_same(front: Any) -> None:
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    service = "sessile.v1.SessionService"
    async with grpc.aio.insecure_channel(front.target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for engine, failure, overall, sessions in (
            (Engine(READY), None, serving, serving),
            (Engine(READY), FULL, serving, not_serving),
            (Engine(RESTARTING), None, not_serving, not_serving),
            (Engine(READY), None, serving, serving),
        ):
            await front.server.report(readiness(engine, admit, lambda failure=failure: failure))
            assert (await stub.Check(health_pb2.HealthCheckRequest())).status == overall
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status == sessions


async def test_the_end_of_the_start_does_not_hide_that_nothing_can_be_kept(front: Any) -> None:
    ready = partial(readiness, Engine(READY), admit, lambda: FULL)
    started = StartedFront(front.manager, front.server, ServedName("tiny"), front.port, ready)
    await started.report_health()
    async with grpc.aio.insecure_channel(front.target) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        assert (await check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        of_sessions = await check(health_pb2.HealthCheckRequest(service="sessile.v1.SessionService"))
        assert of_sessions.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_client_is_told_that_nothing_can_be_kept_and_when_to_come_again(front: Any, disk: Disk) -> None:
    disk.is_full = True
    front.store._writer.database.file.health.failed(FULL)
    async with AsyncSessionClient(front.target, retry=RetryPolicy(max_attempts=1)) as client:
        with pytest.raises(StoreUnavailable) as refused:
            await client.open()
        assert refused.value.retry_after_s == 5.0
    async with front.client() as client:

        async def room_is_made() -> None:
            disk.is_full = False
            await until_writable(front.store)

        front.sleeps.during.append(room_is_made)
        session = await client.open()
        assert front.sleeps.seconds, "it waited, and came again"
        await session.generate(messages="hi").wait()
