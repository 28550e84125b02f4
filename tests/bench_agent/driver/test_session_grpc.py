"""The gRPC driver against the real front with a scripted engine behind it: sessions, forks, rollbacks, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from byte_text import byte_tokenizer, chatml_template
from open_gate import open_gate
from scripted_engine import Script, ScriptedEngine

from sessile.bench_agent.driver.ask import Ask, Conversation, Sampling, ServerUnreachable, TurnRefused
from sessile.bench_agent.driver.observation import Observation
from sessile.bench_agent.driver.session_grpc import SessionDriver
from sessile.bench_agent.load.runner import LoadRunner
from sessile.bench_agent.load.shape import LoadShape
from sessile.bench_agent.metrics.summary import summarise
from sessile.bench_agent.workload.adjust import Adjustments, adjust
from sessile.bench_agent.workload.distributions import fixed
from sessile.bench_agent.workload.plan import Message
from sessile.bench_agent.workload.presets import preset
from sessile.bench_agent.workload.synthetic import synthetic_workload
from sessile.server.readiness import Readiness, ServerState
from sessile.server.rpc.grpc_config import GrpcConfig
from sessile.server.rpc.rpc_server import RpcServer
from sessile.sessions.manager.manager import SessionManager
from sessile.sessions.manager.requests import ListSessions
from sessile.sessions.store import SessionStore


@dataclass
class Front:
    engine: ScriptedEngine
    manager: SessionManager
    driver: SessionDriver


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    engine = ScriptedEngine(context_length=100_000)
    store = SessionStore(tmp_path / "data")
    manager = SessionManager(store, engine, byte_tokenizer(), chatml_template())
    server = RpcServer(manager, open_gate(), GrpcConfig(port=0))
    port = await server.start()
    await server.report(Readiness(state=ServerState.READY, reason=""))
    driver = SessionDriver(f"127.0.0.1:{port}")
    yield Front(engine, manager, driver)
    await driver.close()
    await server.stop(0)
    manager.shutdown()
    store.close()


def ask(index: int, text: str, continues: int | None = None, **more: object) -> Ask:
    new = (Message("user", text),)
    if continues is None:
        new = (Message("system", "Be brief."), *new)
    return Ask(index=index, continues=continues, new=new, sampling=Sampling(max_tokens=4), **more)


async def turn(conversation: Conversation, one: Ask) -> Observation:
    seen = Observation()
    await conversation.turn(one, seen)
    return seen


async def num_sessions(front: Front) -> int:
    return len((await front.manager.list(ListSessions())).sessions)


async def test_a_session_grows_and_usage_is_read(front: Front) -> None:
    conversation = front.driver.conversation("s")
    first = await turn(conversation, ask(0, "hello"))
    second = await turn(conversation, ask(1, "more", 0, closes_branch=True))
    assert await num_sessions(front) == 1
    assert sum(tokens for _, tokens in first.arrivals) == first.usage.completion_tokens == 4
    assert sum(first.usage.by_source.values()) == first.usage.prompt_tokens
    assert second.usage.prompt_tokens is not None and first.usage.prompt_tokens is not None
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    submitted = front.engine.submitted
    assert list(submitted[1].token_ids[: len(submitted[0].token_ids)]) == list(submitted[0].token_ids)
    await conversation.close()
    assert await num_sessions(front) == 0


async def test_an_earlier_point_is_a_rollback_or_a_fork(front: Front) -> None:
    conversation = front.driver.conversation("s")
    await turn(conversation, ask(0, "a"))
    await turn(conversation, ask(1, "b", 0))
    await turn(conversation, ask(2, "c", 0, closes_branch=True))
    assert await num_sessions(front) == 1  # rolled back
    await turn(conversation, ask(3, "d", 0))
    assert await num_sessions(front) == 2  # forked: something may still go on from turn 2
    b, c = (list(submitted.token_ids) for submitted in front.engine.submitted[1:3])
    assert len(b) == len(c) and sum(x != y for x, y in zip(b, c, strict=True)) == 1  # both go on from turn 0


async def test_two_turns_from_one_point_at_a_time(front: Front) -> None:
    conversation = front.driver.conversation("s")
    await turn(conversation, ask(0, "a"))
    found = await asyncio.gather(*(turn(conversation, ask(n, f"try {n}", 0)) for n in (1, 2, 3)))
    assert await num_sessions(front) == 3
    assert all(seen.usage.completion_tokens == 4 for seen in found)


async def test_errors_have_their_kind(front: Front) -> None:
    conversation = front.driver.conversation("s")
    with pytest.raises(TurnRefused):
        await turn(conversation, Ask(index=0, text="", sampling=Sampling(max_tokens=1)))
    nobody = SessionDriver("127.0.0.1:9", timeout_s=5)
    with pytest.raises(ServerUnreachable):
        await turn(nobody.conversation("s"), ask(0, "a"))
    await nobody.close()


async def test_a_whole_load_with_forks_and_sub_agents(front: Front) -> None:
    for _ in range(200):
        front.engine.scripts.append(Script(token_ids=[104, 105, 33]))
    work = synthetic_workload("w", preset("agent-forks").scaled(0.02), sessions=3, seed=1)
    work = adjust(work, Adjustments(gap=fixed(0), output_tokens=3))
    outcome = await LoadRunner(work, front.driver, LoadShape(concurrency=3)).run()
    found = summarise(outcome.turns, outcome.sessions, outcome.repeats)
    assert found.counts.ok == work.num_turns and found.counts.failed == 0, found.errors
    assert found.tokens.output == 3 * work.num_turns
    assert await num_sessions(front) == 0
