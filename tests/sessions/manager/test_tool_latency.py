"""Latencies of tools: quantiles that are near enough, fade, and never grow without bound."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.sessions.manager.tool_latency import MAX_TENANTS, MAX_TOOLS, LatencySketch, ToolLatencies


@given(st.lists(st.floats(0.002, 500_000), min_size=1, max_size=60), st.sampled_from([0.5, 0.95]))
def test_quantiles_are_those_of_the_durations(durations: list[float], share: float) -> None:
    """Within a bucket, of a neighbour at most: recent ones weigh a little more."""
    sketch = LatencySketch()
    for seconds in durations:
        sketch.observe(seconds)
    found = sketch.quantile(share)
    ordered = sorted(durations)
    slack = max(1, round(0.16 * len(ordered)))
    place = min(int(share * len(ordered)), len(ordered) - 1)
    low, high = ordered[max(place - slack, 0)], ordered[min(place + slack, len(ordered) - 1)]
    assert low / 1.1 <= found <= high * 1.1


@given(st.lists(st.floats(0.0, 1e7), min_size=3, max_size=60), st.lists(st.floats(0.0, 1e7), max_size=5))
def test_what_is_kept_goes_on_as_if_nothing_had_happened(durations: list[float], later: list[float]) -> None:
    sketch = LatencySketch()
    for seconds in durations:
        sketch.observe(seconds)
    recalled = LatencySketch.from_bytes(sketch.to_bytes())
    for seconds in later:
        sketch.observe(seconds)
        recalled.observe(seconds)
    assert recalled.observations == len(durations) + len(later)
    assert [recalled.quantile(share) for share in (0.0, 0.5, 0.95, 1.0)] == [
        sketch.quantile(share) for share in (0.0, 0.5, 0.95, 1.0)
    ]


def test_what_changed_is_told_once() -> None:
    latencies = ToolLatencies()
    for tool in ("grep", "make", "grep"):
        latencies.observe("a", tool, 1.0)
    changed = latencies.take_changed()
    assert set(changed) == {("a", "grep"), ("a", "make")} and not latencies.take_changed()
    again = ToolLatencies()
    again.observe("a", "make", 50.0)
    for (tenant, tool), kept in changed.items():
        again.recall(tenant, tool, LatencySketch.from_bytes(kept))
    again.observe("a", "grep", 1.0)
    assert again.expected_idle_s("a", "grep") == pytest.approx((1.0, 1.0), rel=0.06)
    assert again.expected_idle_s("a", "make") is None, "what was seen since the start counts"


def test_the_recent_past_counts_most() -> None:
    sketch = LatencySketch()
    for _ in range(1_000):
        sketch.observe(1.0)
    for _ in range(400):
        sketch.observe(60.0)
    assert 55 < sketch.quantile(0.5) < 66
    assert len(sketch._weights) == 2


def test_it_holds_for_ever() -> None:
    sketch, chance = LatencySketch(), random.Random(1)
    for _ in range(60_000):
        sketch.observe(chance.lognormvariate(0, 2))
    assert 0.7 < sketch.quantile(0.5) < 1.4
    assert len(sketch._weights) < 230
    for seconds in (0.0, 1e9):
        sketch.observe(seconds)


def test_nothing_is_concluded_from_too_little() -> None:
    latencies = ToolLatencies()
    for _ in range(2):
        latencies.observe("a", "grep", 1.0)
    assert latencies.expected_idle_s("a", "grep") is None
    latencies.observe("a", "grep", 1.0)
    assert latencies.expected_idle_s("a", "grep") == pytest.approx((1.0, 1.0), rel=0.06)
    assert latencies.expected_idle_s("b", "grep") is None


def test_tools_and_tenants_are_bounded() -> None:
    latencies = ToolLatencies()
    for _ in range(3):
        latencies.observe("a", "kept", 1.0)
    for number in range(MAX_TOOLS - 1):
        latencies.observe("a", f"tool {number}", 1.0)
    latencies.observe("a", "kept", 1.0)
    latencies.observe("a", "one more", 1.0)
    assert latencies.expected_idle_s("a", "kept") is not None
    assert len(latencies._tenants["a"]) == MAX_TOOLS
    for number in range(MAX_TENANTS):
        latencies.observe(f"tenant {number}", "grep", 1.0)
    assert len(latencies._tenants) == MAX_TENANTS
    assert latencies.expected_idle_s("a", "kept") is None
