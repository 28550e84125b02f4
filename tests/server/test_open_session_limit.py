"""A tenant's open sessions are bounded; the refusal says when to try again, over both APIs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from live_front import live_front
from manager_bench import Bench, user
from open_gate import open_gate

from sessile.server.client import AsyncSessionClient, RetryPolicy
from sessile.server.rpc.grpc_config import GrpcConfig
from sessile.server.rpc.rpc_server import RpcServer
from sessile.sessions.errors import CapacityError
from sessile.sessions.manager import CloseRequest, ForkRequest, OpenSession, SessionManager

MOST = 3


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    bench.start()
    bench.manager.shutdown()
    bench.manager = SessionManager(bench.store, bench.engine, bench.tokenizer, bench.template, most_open_sessions=MOST)
    yield bench
    bench.stop()


async def test_a_tenant_at_its_limit_is_refused_until_it_closes_one(bench: Bench) -> None:
    opened = [await bench.open(tenant="a") for _ in range(MOST - 1)]
    await bench.manager.fork(ForkRequest(session_id=opened[0].session_id, tenant="a", at=None))
    for refused in (
        bench.manager.open(OpenSession(tenant="a")),
        bench.manager.fork(ForkRequest(session_id=opened[0].session_id, tenant="a", at=None)),
    ):
        with pytest.raises(CapacityError, match=f"has {MOST} open sessions") as error:
            await refused
        assert error.value.field == "tenant"
        assert error.value.retry_after_s
    await bench.open(tenant="b")
    await bench.say(opened[0].session_id, "goes on", tenant="a")
    await bench.manager.close(CloseRequest(session_id=opened[1].session_id, tenant="a"))
    await bench.open(tenant="a")


async def test_many_that_come_together_do_not_slip_through(bench: Bench) -> None:
    outcomes = await asyncio.gather(*(bench.open(tenant="a") for _ in range(4 * MOST)), return_exceptions=True)
    assert sum(isinstance(outcome, CapacityError) for outcome in outcomes) == 3 * MOST
    assert len(await bench.store.sessions("a", limit=100)) == MOST


async def test_the_same_request_is_answered_at_the_limit(bench: Bench) -> None:
    for number in range(MOST):
        await bench.open(tenant="a", request_id=f"r{number}")
    again = await bench.open(tenant="a", request_id="r0")
    assert again.session_id == (await bench.store.sessions("a", limit=1))[0].session_id


async def test_conversations_of_stateless_clients_do_not_count(bench: Bench) -> None:
    for number in range(2 * MOST):
        await bench.complete([user(f"conversation {number}")], tenant="a")
    for _ in range(MOST):
        await bench.open(tenant="a")
    with pytest.raises(CapacityError):
        await bench.open(tenant="a")
    await bench.complete([user("one more")], tenant="a")


async def test_over_grpc_it_is_resource_exhausted_with_a_retry_time(bench: Bench) -> None:
    server = RpcServer(bench.manager, open_gate(), GrpcConfig(port=0))
    port = await server.start()
    async with AsyncSessionClient(f"127.0.0.1:{port}", retry=RetryPolicy(max_attempts=1)) as client:
        for _ in range(MOST):
            await client.open()
        with pytest.raises(CapacityError) as refused:
            await client.open()
        assert refused.value.retry_after_s == 30.0
    await server.stop(0)


async def test_over_http_it_is_429(tmp_path: Path) -> None:
    async with live_front(tmp_path, most_open_sessions=MOST) as live:
        for _ in range(MOST):
            assert (await live.client.post("/v1/sessions", json={})).status_code == 200
        refused = await live.client.post("/v1/sessions", json={})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "30")
