"""The engine's counters and what is known of turns as Prometheus families. ``docs/metrics.md`` lists them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..engine.messages import STEP_TIMES, CacheStats, EngineStats, Priority
from ..observe.histogram import Histogram
from ..observe.observatory import Observatory
from ..observe.reuse_counts import ReuseCounts
from .alias_metrics import alias_families
from .tier_metrics import tier_families

SHOWN_TENANTS = 32  # those that came first; the others are one
OTHER_TENANTS = "_other"


class ServerCollector(Collector):
    """All families at the time of a scrape. The engine's start again at 0 when it was restarted."""

    def __init__(self, read_stats: Callable[[], EngineStats], observatory: Observatory) -> None:
        self._read_stats = read_stats
        self._observatory = observatory
        self._tenants: list[str] = []  # that have a label of their own, for good

    def collect(self) -> Iterator[Metric]:
        stats, seen = self._read_stats(), self._observatory
        yield from engine_families(stats)
        yield from reuse_families(stats)
        yield from tier_families(stats.tiers)
        yield from turn_families(seen)
        yield from miss_families(seen)
        yield self._tenant_family(seen)
        if seen.config.metric_aliases:
            yield from alias_families(stats, seen)

    def _tenant_family(self, seen: Observatory) -> Metric:
        family = CounterMetricFamily(
            "sessile_tenant_prompt_tokens", "Prompt tokens by tenant: all, reused, reusable", labels=["tenant", "kind"]
        )
        counts = {name: windows.since_start for name, windows in seen.reuse.tenants.latest(len(seen.reuse.tenants))}
        for name in reversed(counts):
            if name not in self._tenants and len(self._tenants) < SHOWN_TENANTS:
                self._tenants.append(name)
        others = ReuseCounts()
        for name, count in counts.items():
            if name in self._tenants:
                _add_tenant(family, name, count)
            else:
                others = others.plus(count)
        if others.turns:
            _add_tenant(family, OTHER_TENANTS, others)
        return family


def engine_families(stats: EngineStats) -> Iterator[Metric]:
    """Steps, blocks, turns and queues."""
    yield labelled(
        GaugeMetricFamily("sessile_kv_blocks", "Blocks of the KV pool by state", labels=["state"]),
        {"free": stats.free_blocks, "cached": stats.cached_blocks, "used": stats.used_blocks},
    )
    yield labelled(
        GaugeMetricFamily("sessile_engine_turns", "Turns in the engine by state", labels=["state"]),
        {"running": stats.running, "waiting": stats.waiting},
    )
    for name, help_text, value in (
        ("sessile_generated_tokens", "Tokens of answers", stats.generated_tokens),
        ("sessile_forced_tokens", "Of these, tokens that grammars forced, not sampled", stats.forced_tokens),
        ("sessile_drafted_tokens", "Tokens proposed by speculation", stats.drafted_tokens),
        ("sessile_accepted_tokens", "Of these, tokens that were right", stats.accepted_tokens),
        ("sessile_damaged_draft_files", "Files of past outputs that were thrown away", stats.damaged_draft_files),
        ("sessile_engine_steps", "Steps of the engine", stats.steps),
        ("sessile_engine_model_seconds", "Of these, seconds in the model", stats.model_s),
        ("sessile_evicted_blocks", "Blocks evicted from the KV pool", stats.evicted_blocks),
        ("sessile_preemptions", "Turns that lost their blocks for another's", stats.preemptions),
    ):
        yield CounterMetricFamily(name, help_text, value=value)
    yield GaugeMetricFamily(
        "sessile_prefill_tokens_per_second",
        "Prompt tokens computed a second, recently",
        value=stats.prefill_tokens_per_s,
    )
    yield from _cache_families(stats.cache)
    drafts = CounterMetricFamily(
        "sessile_draft_tokens", "Drafted tokens by where the guess came from", labels=["source", "outcome"]
    )
    for counters in stats.drafts:
        drafts.add_metric([counters.source, "accepted"], counters.accepted)
        drafts.add_metric([counters.source, "rejected"], counters.drafted - counters.accepted)
    yield drafts
    yield _step_family(stats)
    classes = {priority.name.lower(): queue for priority, queue in zip(Priority, stats.queues, strict=False)}
    for name, help_text, field, kind in (
        ("sessile_queue_turns", "Turns that wait, by class", "waiting", GaugeMetricFamily),
        ("sessile_queue_tokens", "Uncached prompt tokens that wait, by class", "waiting_tokens", GaugeMetricFamily),
        ("sessile_queue_started", "Turns that were admitted, by class", "started", CounterMetricFamily),
        ("sessile_queue_expired", "Turns whose deadline passed in the queue", "expired", CounterMetricFamily),
        ("sessile_queue_wait_seconds", "Seconds that turns waited, by class", "waited_s", CounterMetricFamily),
    ):
        family = kind(name, help_text, labels=["class"])
        yield labelled(family, {name: getattr(queue, field) for name, queue in classes.items()})


def _cache_families(cache: CacheStats) -> Iterator[Metric]:
    """Evictions by cause, pins, and what was decided about loads."""
    other = cache.superseded_blocks_evicted + cache.over_quota_blocks_evicted
    yield labelled(
        CounterMetricFamily(
            "sessile_evictions", "Blocks that left the KV pool, by why they were chosen", labels=["cause"]
        ),
        {
            "superseded": cache.superseded_blocks_evicted,
            "over_quota": cache.over_quota_blocks_evicted,
            "least_value": max(0, cache.evicted_blocks - other),
        },
    )
    yield GaugeMetricFamily("sessile_pins", "Hard pins", value=cache.pins)
    yield labelled(
        GaugeMetricFamily("sessile_pin_blocks", "Blocks kept by pins, and how many may be", labels=["kind"]),
        {"pinned": cache.pinned_blocks, "budget": cache.pin_budget_blocks},
    )
    yield CounterMetricFamily("sessile_broken_pins", "Pins that gave way to a turn", value=cache.broken_pins)
    yield CounterMetricFamily(
        "sessile_tenant_limited_pins", "Pins cut or refused by their tenant's limit", value=cache.tenant_limited_pins
    )
    decided = CounterMetricFamily(
        "sessile_tier_decisions", "Blocks of lower tiers by what was decided", labels=["tier", "decision"]
    )
    for decision, by_tier in (
        ("loaded", cache.loaded_blocks),
        ("recomputed", cache.recomputed_blocks),
        ("demoted", cache.demoted_blocks),
        ("not_demoted", cache.not_demoted_blocks),
    ):
        for tier, blocks in by_tier.items():
            decided.add_metric([tier, decision], blocks)
    yield decided
    yield GaugeMetricFamily(
        "sessile_prefill_prediction_factor", "By which factor predicted prefills are off", value=cache.prefill_error
    )


def _step_family(stats: EngineStats) -> Metric:
    """Steps by how long they took."""
    histogram = Histogram(STEP_TIMES)
    for index, count in enumerate(stats.steps_by_time):
        histogram.counts[index] = count
    histogram.total = stats.step_s
    return histogram_family("sessile_engine_step_seconds", "One step of the engine", histogram)


def reuse_families(stats: EngineStats) -> Iterator[Metric]:
    """Prompt tokens: where they came from, where they could have come from, and why they did not."""
    reuse = stats.reuse
    yield labelled(
        CounterMetricFamily(
            "sessile_prompt_tokens_by_source",
            "Prompt tokens by where their KV came from, counted once, at admission",
            labels=["source"],
        ),
        msgspec.structs.asdict(stats.prompt_tokens_by_source),
    )
    yield CounterMetricFamily(
        "sessile_reusable_prompt_tokens",
        "Prompt tokens that an unlimited cache would have had",
        value=reuse.reusable_tokens,
    )
    yield labelled(
        CounterMetricFamily(
            "sessile_missed_prompt_tokens", "Reusable prompt tokens that were computed, by cause", labels=["cause"]
        ),
        msgspec.structs.asdict(reuse.missed),
    )
    yield CounterMetricFamily(
        "sessile_other_salt_prompt_tokens", "Prompt tokens that only another tenant's turns had", reuse.other_salts
    )
    yield GaugeMetricFamily(
        "sessile_reuse_index_blocks", "Blocks in the index of what was ever computed", reuse.index_blocks
    )
    yield CounterMetricFamily(
        "sessile_reuse_index_forgotten_blocks",
        "Blocks that the index had no room for: above 0, reusable tokens are a lower bound",
        reuse.index_forgotten,
    )


def turn_families(seen: Observatory) -> Iterator[Metric]:
    """Times and outcomes of turns, over both APIs."""
    times = seen.times
    for name, help_text, histogram in (
        ("sessile_time_to_first_token_seconds", "Turn to first token", times.time_to_first_token),
        ("sessile_inter_token_latency_seconds", "Token to token of a turn", times.inter_token_latency),
        ("sessile_turn_queue_seconds", "Arrival to first step of a turn", times.queue),
        ("sessile_turn_load_seconds", "Loads from lower tiers, of turns that had any", times.load),
        ("sessile_turn_prefill_seconds", "Computing a turn's prompt", times.prefill),
        ("sessile_turn_decode_seconds", "Sampling a turn's answer", times.decode),
        ("sessile_turn_seconds", "A whole turn", times.turn),
    ):
        yield histogram_family(name, help_text, histogram)
    yield labelled(CounterMetricFamily("sessile_turns", "Turns by outcome", labels=["outcome"]), dict(times.outcomes))
    moved = CounterMetricFamily("sessile_kv_event_tokens", "Tokens of KV by what happened", labels=["event", "tier"])
    for (kind, tier), tokens in sorted(seen.kv_events.tokens.items()):
        moved.add_metric([kind, tier], tokens)
    yield moved
    yield CounterMetricFamily("sessile_kv_events_lost", "KV events that were dropped", seen.kv_events.num_lost)


def miss_families(seen: Observatory) -> Iterator[Metric]:
    """Explained misses."""
    yield labelled(
        CounterMetricFamily("sessile_cache_misses", "Explained misses by prompt-lint's rule", labels=["rule"]),
        dict(seen.misses.by_rule),
    )
    yield labelled(
        CounterMetricFamily("sessile_lost_prompt_tokens", "Tokens of explained misses by kind", labels=["kind"]),
        dict(seen.misses.tokens_by_family),
    )
    yield labelled(
        CounterMetricFamily(
            "sessile_unexplained_turns", "Turns whose answer could not say why, by reason", labels=["reason"]
        ),
        {"queue_full": seen.explainer.num_dropped, "too_late": seen.num_late, "unreadable": seen.explainer.num_failed},
    )
    log = seen.trace_log
    if log is not None:
        yield GaugeMetricFamily("sessile_trace_log_on", "0 when the trace log could not be written", not log.failure)
        yield CounterMetricFamily("sessile_trace_log_turns", "Turns in the trace log", log.num_written)
        yield CounterMetricFamily("sessile_trace_log_dropped", "Turns that were not logged", log.num_dropped)


def labelled(family: Metric, values: Mapping[str, float]) -> Metric:
    """``family``, of one label, with a sample for each value."""
    assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def histogram_family(name: str, help_text: str, histogram: Histogram, labels: Sequence[tuple[str, str]] = ()) -> Metric:
    """One of our histograms as Prometheus has them."""
    family = HistogramMetricFamily(name, help_text, labels=[label for label, _ in labels])
    family.add_metric([value for _, value in labels], histogram.cumulative(), histogram.total)
    return family


def _add_tenant(family: CounterMetricFamily, name: str, counts: ReuseCounts) -> None:
    family.add_metric([name, "all"], counts.prompt_tokens)
    family.add_metric([name, "reused"], counts.cached_tokens)
    family.add_metric([name, "reusable"], counts.reusable_tokens)
