"""``/metrics`` against docs/metrics.md, promtool, and a server with thousands of sessions."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from observed_turns import run_turn
from prometheus_client.parser import text_string_to_metric_families

from sessile.server.engine.cache_messages import CacheEvent, CacheEventKind
from sessile.server.engine.messages import EngineStats, QueueStats, TierCounters
from sessile.server.observe.config import ObserveConfig
from sessile.server.observe.observatory import Observatory
from sessile.server.observe.trace_log import TraceLog
from sessile.server.web.application import create_app

DOCS = Path(__file__).resolve().parents[3] / "docs"
TIER = TierCounters(
    tier="host",
    events={"hits": 1},
    read_bytes=1,
    written_bytes=1,
    used_bytes=1,
    capacity_bytes=2,
    read_bandwidth=1.0,
    write_bandwidth=1.0,
    unavailable="",
)


@pytest.fixture
def full(stage, tmp_path):
    """Every part that has metrics has something to tell."""
    stage.observatory.close()
    log = TraceLog(tmp_path, content="off", file_bytes=1 << 20, files=2, detokenise=lambda token_ids: "", model="tiny")
    stage.observatory = Observatory(ObserveConfig(metric_aliases=True), model="tiny", trace_log=log)
    stage.engine.stats = EngineStats(tiers=(TIER,), queues=(QueueStats(), QueueStats(), QueueStats(waiting=2)))
    stage.observatory.kv_events.note(CacheEvent(kind=CacheEventKind.STORED, tier="device", tokens=16))
    run_turn(stage.observatory, "a")
    return stage


async def scrape(stage) -> str:
    transport = httpx.ASGITransport(create_app(stage.parts()))
    async with httpx.AsyncClient(transport=transport, base_url="http://sessile") as client:
        return (await client.get("/metrics")).text


async def test_every_family_is_documented_and_every_documented_one_is_there(full) -> None:
    names = set()
    for family in text_string_to_metric_families(await scrape(full)):
        names.add(family.name + "_total" if family.type == "counter" else family.name)
    written = set(re.findall(r"`((?:sessile_|vllm:|sglang:)[a-z0-9_]+)", (DOCS / "metrics.md").read_text()))
    assert names == {name for name in written if name not in ("sessile_", "vllm:", "sglang:")}


async def test_labels_do_not_grow_with_sessions_and_tenants(full) -> None:
    for number in range(5000):
        run_turn(full.observatory, str(number), tenant=f"tenant-{number % 700}", conversation=f"session-{number}")
    app_text = await scrape(full)
    assert "session-" not in app_text
    samples = [line for line in app_text.splitlines() if not line.startswith("#")]
    assert len(samples) < 700
    tenants = {line.split('tenant="')[1].split('"')[0] for line in samples if 'tenant="' in line}
    assert len(tenants) <= 33
    assert "_other" in tenants
    families = {family.name: family for family in text_string_to_metric_families(app_text)}
    counted = sum(s.value for s in families["sessile_tenant_prompt_tokens"].samples if s.labels["kind"] == "all")
    assert counted > 100 * 256 - 1  # of the tenants that are remembered


async def test_promtool_has_nothing_to_say(full) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian's package prometheus) is not installed")
    full.observatory.config = ObserveConfig()  # vLLM's names have colons, which promtool keeps for recording rules
    checked = await asyncio.to_thread(
        subprocess.run,
        [promtool, "check", "metrics"],
        input=await scrape(full),
        text=True,
        capture_output=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


async def test_a_scrape_with_thousands_of_sessions_is_measured(full, record_property) -> None:
    """Speed is told, not asserted: docs/measurements.md has the number of a quiet machine."""
    for number in range(5000):
        run_turn(full.observatory, str(number), tenant=f"t{number % 700}", conversation=f"s{number}")
    started = time.perf_counter()
    await scrape(full)
    record_property("scrape_s", time.perf_counter() - started)
