"""A failing tier shows in the metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from sessile.server.engine.tier_counters import tier_counters
from sessile.server.web.tier_metrics import tier_families
from sessile.sessions.cache.cost_model import Accuracy
from sessile.sessions.cache.tiers import Tier, TierStats


class Families(Collector):
    def __init__(self, *tiers) -> None:
        self.tiers = tiers

    def collect(self):
        return tier_families(self.tiers)


def text_of(*tiers) -> str:
    registry = CollectorRegistry()
    registry.register(Families(*tiers))
    return generate_latest(registry).decode()


def test_what_a_tier_counts_is_a_metric():
    stats = TierStats(1000, 300, 3, hits=5, corrupt=2, read_bytes=70, write_bandwidth=9.0, unavailable="disk full")
    accuracy = Accuracy()
    accuracy.note(1.0, 2.0)
    text = text_of(tier_counters(Tier.DISK, stats, accuracy), tier_counters(Tier.HOST, TierStats(10, 0, 0), None))
    for line in (
        'sessile_tier_events_total{event="hits",tier="disk"} 5.0',
        'sessile_tier_events_total{event="corrupt",tier="disk"} 2.0',
        'sessile_tier_bytes_total{direction="read",tier="disk"} 70.0',
        'sessile_tier_bytes_per_second{direction="written",tier="disk"} 9.0',
        'sessile_tier_used_bytes{tier="disk"} 300.0',
        'sessile_tier_capacity_bytes{tier="disk"} 1000.0',
        'sessile_tier_available{tier="disk"} 0.0',
        'sessile_tier_available{tier="host"} 1.0',
        'sessile_tier_load_prediction_factor{tier="host"} 1.0',
    ):
        assert line in text
    assert 'sessile_tier_load_prediction_factor{tier="disk"} 2.0' in text or "1.99" in text


def test_no_tiers_no_samples():
    assert "{" not in text_of()
