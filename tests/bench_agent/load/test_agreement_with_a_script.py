"""The harness's numbers against those of a scripted server that keeps its own count: within 3%."""

from __future__ import annotations

import json
import statistics

import pytest
from scripted_openai import Script, ScriptedServer, Served

from sessile.bench_agent.driver.dialects import dialect_named
from sessile.bench_agent.driver.openai_http import OpenAiDriver
from sessile.bench_agent.load.overhead import measure_overhead
from sessile.bench_agent.load.runner import LoadRunner
from sessile.bench_agent.load.shape import LoadShape
from sessile.bench_agent.metrics.summary import Summary, summarise
from sessile.bench_agent.workload.adjust import Adjustments, adjust
from sessile.bench_agent.workload.distributions import fixed
from sessile.bench_agent.workload.presets import preset
from sessile.bench_agent.workload.synthetic import synthetic_workload

TTFT_S, TPOT_S, TOKENS = 0.25, 0.05, 8


async def test_times_and_rates_agree_with_the_servers_own_count() -> None:
    """On a machine so busy that even both stamps of one moment differ, it is tried again."""
    for _ in range(8):
        found, served = await measured()
        differences = compared(found, served)
        if max(differences.values()) <= 0.03:
            break
    assert max(differences.values()) <= 0.03, differences
    assert found.tokens.output == 12 * TOKENS
    assert found.tokens.prompt == sum(len(json.dumps(one.body["messages"])) // 4 for one in served)
    assert found.hit_rates.server == pytest.approx(0.5, abs=0.01)


async def measured() -> tuple[Summary, list[Served]]:
    work = synthetic_workload("w", preset("agent-load"), sessions=4, seed=0)
    work = adjust(work, Adjustments(output_tokens=TOKENS, max_turns=3, gap=fixed(0.1)))
    async with ScriptedServer(Script(TTFT_S, TPOT_S)) as server:
        driver = OpenAiDriver(server.url, model=None, dialect=dialect_named("openai"))
        outcome = await LoadRunner(work, driver, LoadShape(concurrency=2)).run()
        await driver.close()
    return summarise(outcome.turns, outcome.sessions, outcome.repeats), server.served


def compared(found: Summary, served: list[Served]) -> dict[str, float]:
    """Relative differences between the harness's numbers and the server's own."""
    ttft = [one.sent[0] - one.received for one in served]
    tpot = [(one.sent[-1] - one.sent[0]) / (TOKENS - 1) for one in served]
    e2e = [one.sent[-1] - one.received for one in served]
    wall = max(one.sent[-1] for one in served) - min(one.received for one in served)
    assert min(ttft) >= TTFT_S and min(e2e) >= TTFT_S + (TOKENS - 1) * TPOT_S  # the script was kept to
    assert found.ttft_later_s is not None and found.tpot_s is not None and found.e2e_s is not None
    pairs = {
        "ttft": (found.ttft_later_s.p50.value, statistics.median(ttft)),
        "tpot": (found.tpot_s.p50.value, statistics.median(tpot)),
        "e2e": (found.e2e_s.p50.value, statistics.median(e2e)),
        "wall": (found.wall_s.value, wall),
        "output rate": (found.output_tokens_per_s.value, 12 * TOKENS / wall),
    }
    return {name: abs(ours / theirs - 1) for name, (ours, theirs) in pairs.items()}


async def test_the_null_server_tells_what_the_harness_adds() -> None:
    found = await measure_overhead(4, 2.5)
    assert found.turns >= 1 and found.pieces == 48 * found.turns
    assert 0 < found.ttft_p50_s <= found.ttft_p99_s
    assert 0 < found.piece_p50_s <= found.piece_p99_s
