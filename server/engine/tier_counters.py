"""What the engine tells others about a tier."""

from __future__ import annotations

from ...sessions.cache.cost_model import Accuracy
from ...sessions.cache.tiers import Tier, TierStats
from .messages import TierCounters

_EVENTS = ("hits", "misses", "corrupt", "errors", "late", "stored", "rejected", "evicted")


def tier_counters(tier: Tier, stats: TierStats, accuracy: Accuracy | None) -> TierCounters:
    """``stats`` as a message, with how well its loads were predicted (None: there were none)."""
    return TierCounters(
        tier=tier.value,
        events={event: getattr(stats, event) for event in _EVENTS},
        read_bytes=stats.read_bytes,
        written_bytes=stats.written_bytes,
        used_bytes=stats.used_bytes,
        capacity_bytes=stats.capacity_bytes,
        read_bandwidth=stats.read_bandwidth,
        write_bandwidth=stats.write_bandwidth,
        unavailable=stats.unavailable,
        typical_error=1.0 if accuracy is None else accuracy.typical_factor,
    )
