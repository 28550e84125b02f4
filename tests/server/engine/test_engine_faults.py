"""An engine that crashes or hangs: who is blamed, and how it goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest
from tiny_engine import tiny_engine_config
from tiny_llama import VOCAB

from sessile.server.engine.client import EngineClient
from sessile.server.engine.limits_config import LimitsConfig
from sessile.server.engine.messages import SubmitTurn
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.supervisor import EngineState
from sessile.sessions.errors import CapacityError, EngineError, RequestError

pytestmark = pytest.mark.asyncio(loop_scope="module")


def turn(turn_id: str, first_token: int, max_tokens: int = 1500) -> SubmitTurn:
    tokens = [(7 * i + first_token) % VOCAB for i in range(40)]
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return SubmitTurn(turn_id=turn_id, token_ids=tokens, sampling=sampling)


async def until_ready(engine: EngineClient, other_than: int | None) -> None:
    while engine.state is not EngineState.READY or engine.pid == other_than:
        await asyncio.sleep(0.01)


async def die_during(engine: EngineClient, submitted: SubmitTurn, number: signal.Signals) -> None:
    """The engine gets a signal while it runs ``submitted``; returns when the next engine is ready."""
    running = engine.generate(submitted)
    await anext(running)
    pid = engine.pid
    assert pid is not None
    os.kill(pid, number)
    with pytest.raises(EngineError) as raised:
        async for _ in running:
            pass
    assert raised.value.retry_after_s is not None
    await until_ready(engine, other_than=pid)


async def test_a_turn_that_crashes_the_engine_twice_is_refused_and_others_go_on(engine: EngineClient) -> None:
    await die_during(engine, turn("poison", 3), signal.SIGSEGV)
    await die_during(engine, turn("poison, sent again", 3), signal.SIGSEGV)
    with pytest.raises(RequestError, match="crashed 2 times"):
        await anext(engine.generate(turn("and again", 3)))
    outputs = [output async for output in engine.generate(turn("another", 4, max_tokens=4))]
    assert outputs[-1].usage is not None


async def test_a_kill_from_outside_blames_nobody(engine: EngineClient) -> None:
    for number in range(3):
        await die_during(engine, turn(f"innocent {number}", 5), signal.SIGKILL)
    outputs = [output async for output in engine.generate(turn("innocent", 5, max_tokens=4))]
    assert outputs[-1].usage is not None


async def test_a_stopped_engine_is_replaced(folder: Path) -> None:
    engine = EngineClient(tiny_engine_config(folder, watchdog_s=8.0))
    await engine.start()
    await die_during(engine, turn("hangs", 6), signal.SIGSTOP)
    assert engine.quarantine.num_suspects == 1
    outputs = [output async for output in engine.generate(turn("next", 7, max_tokens=4))]
    assert outputs[-1].usage is not None
    await engine.close()


async def test_an_idle_engine_is_not_taken_for_a_hanging_one(folder: Path) -> None:
    engine = EngineClient(tiny_engine_config(folder, watchdog_s=6.0))
    await engine.start()
    pid = engine.pid
    stats = engine.stats
    while engine.stats is stats:  # it says that it is alive, with new counters, although nothing happens
        await asyncio.sleep(0.05)
    assert engine.pid == pid
    await engine.close()


async def test_a_python_that_cannot_be_started_is_an_error_and_not_a_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EngineError, match="/nowhere/python"):
        await asyncio.wait_for(EngineClient(tiny_engine_config(folder)).start(), 30)


async def test_an_engine_that_dies_before_it_can_speak_says_how(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EngineError, match="exit status 1") as raised:
        await asyncio.wait_for(EngineClient(tiny_engine_config(folder)).start(), 30)
    assert raised.value.remedy


async def test_a_tenant_at_its_limit_is_refused_and_another_is_not(folder: Path) -> None:
    engine = EngineClient(tiny_engine_config(folder), limits=LimitsConfig(concurrent_turns=1))
    await engine.start()
    running = engine.generate(turn("first", 8))
    await anext(running)
    with pytest.raises(CapacityError) as refused:
        await anext(engine.generate(turn("second", 9)))
    assert refused.value.field == "tenant"
    other = msgspec.structs.replace(turn("another tenant's", 9, max_tokens=2), tenant="other")
    assert [output async for output in engine.generate(other)][-1].usage
    await running.aclose()
    assert [output async for output in engine.generate(turn("after", 9, max_tokens=2))][-1].usage
    await engine.close()
