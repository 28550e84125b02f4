"""The harness's numbers against those of a scripted server that keeps its own count: within 3%."""

from __future__ import annotations

import statistics

import pytest
from scripted_openai import Script, ScriptedServer

from sessile.bench_agent.driver.dialects import dialect_named
from sessile.bench_agent.driver.openai_http import OpenAiDriver
from sessile.bench_agent.load.overhead import measure_overhead
from sessile.bench_agent.load.runner import LoadRunner
from sessile.bench_agent.load.shape import LoadShape
from sessile.bench_agent.metrics.summary import summarise
from sessile.bench_agent.workload.adjust import Adjustments, adjust
from sessile.bench_agent.workload.distributions import fixed
from sessile.bench_agent.workload.presets import preset
from sessile.bench_agent.workload.synthetic import synthetic_workload

TTFT_S, TPOT_S, TOKENS = 0.25, 0.05, 8


async def test_times_and_rates_agree_with_the_servers_own_count() -> None:
    work = synthetic_workload("w", preset("agent-load"), sessions=4, seed=0)
    work = adjust(work, Adjustments(output_tokens=TOKENS, max_turns=3, gap=fixed(0.1)))
    async with ScriptedServer(Script(TTFT_S, TPOT_S)) as server:
        driver = OpenAiDriver(server.url, model=None, dialect=dialect_named("openai"))
        outcome = await LoadRunner(work, driver, LoadShape(concurrency=2)).run()
        await driver.close()
    found = summarise(outcome.turns, outcome.sessions, outcome.repeats)
    ttft = [served.sent[0] - served.received for served in server.served]
    tpot = [(served.sent[-1] - served.sent[0]) / (TOKENS - 1) for served in server.served]
    e2e = [served.sent[-1] - served.received for served in server.served]
    wall = max(served.sent[-1] for served in server.served) - min(served.received for served in server.served)
    assert min(ttft) >= TTFT_S and min(tpot) >= TPOT_S * 0.9
    assert found.ttft_later_s is not None and found.tpot_s is not None and found.e2e_s is not None
    assert found.ttft_later_s.p50.value == pytest.approx(statistics.median(ttft), rel=0.03)
    assert found.tpot_s.p50.value == pytest.approx(statistics.median(tpot), rel=0.03)
    assert found.e2e_s.p50.value == pytest.approx(statistics.median(e2e), rel=0.03)
    assert found.wall_s.value == pytest.approx(wall, rel=0.03)
    assert found.output_tokens_per_s.value == pytest.approx(12 * TOKENS / wall, rel=0.03)
    assert found.tokens.output == 12 * TOKENS
    assert found.tokens.prompt == sum(len(_prompt(served.body)) // 4 for served in server.served)
    assert found.hit_rates.server == pytest.approx(0.5, abs=0.01)


def _prompt(body: dict[str, object]) -> str:
    import json

    return json.dumps(body["messages"])


async def test_the_null_server_tells_what_the_harness_adds() -> None:
    found = await measure_overhead(4, 1.0)
    assert found.turns >= 4 and found.pieces == 48 * found.turns
    assert 0 < found.ttft_p50_s < 0.05
    assert found.piece_p50_s <= found.piece_p99_s
