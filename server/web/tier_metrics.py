"""The tiers below the KV pool as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..engine.messages import TierCounters


def tier_families(tiers: Sequence[TierCounters]) -> Iterator[Metric]:
    """All that is known of ``tiers``; a tier that fails shows as not available, with its errors counted."""
    events = CounterMetricFamily(
        "sessile_tier_events", "Blocks of a cache tier by what happened", labels=["tier", "event"]
    )
    moved = CounterMetricFamily(
        "sessile_tier_bytes", "Bytes moved from and to a cache tier", labels=["tier", "direction"]
    )
    speed = GaugeMetricFamily(
        "sessile_tier_bytes_per_second", "Speed of recent transfers with a cache tier", labels=["tier", "direction"]
    )
    used = GaugeMetricFamily("sessile_tier_used_bytes", "Bytes that a cache tier holds", labels=["tier"])
    capacity = GaugeMetricFamily("sessile_tier_capacity_bytes", "Bytes that a cache tier may hold", labels=["tier"])
    available = GaugeMetricFamily(
        "sessile_tier_available", "1 when a cache tier answers, 0 when it fails", labels=["tier"]
    )
    error = GaugeMetricFamily(
        "sessile_tier_load_prediction_factor",
        "By which factor predicted load times are off, typically",
        labels=["tier"],
    )
    for tier in tiers:
        for event, count in tier.events.items():
            events.add_metric([tier.tier, event], count)
        moved.add_metric([tier.tier, "read"], tier.read_bytes)
        moved.add_metric([tier.tier, "written"], tier.written_bytes)
        speed.add_metric([tier.tier, "read"], tier.read_bandwidth)
        speed.add_metric([tier.tier, "written"], tier.write_bandwidth)
        used.add_metric([tier.tier], tier.used_bytes)
        capacity.add_metric([tier.tier], tier.capacity_bytes)
        available.add_metric([tier.tier], 0 if tier.unavailable else 1)
        error.add_metric([tier.tier], tier.typical_error)
    yield from (events, moved, speed, used, capacity, available, error)
