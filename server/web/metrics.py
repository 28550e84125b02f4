"""Prometheus: what HTTP counts itself, and the engine's latest counters. One registry an application, no globals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...sessions.errors import SessileError
from ...sessions.manager.requests import TurnFinished
from ..engine.messages import EngineStats
from .errors import http_status_of
from .tier_metrics import tier_families

_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 30, 60, 120)
_TOKEN_TIMES = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1)


class HttpMetrics:
    """Counters of the HTTP front. ``read_stats`` gives the engine's latest counters at each scrape."""

    def __init__(self, read_stats: Callable[[], EngineStats]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        own = self.registry
        self.turns = Counter(
            "sessile_http_turns", "Turns over HTTP by endpoint and outcome", ["endpoint", "outcome"], registry=own
        )
        self.in_flight = Gauge("sessile_http_turns_in_flight", "Turns over HTTP that run now", registry=own)
        self.errors = Counter("sessile_http_errors", "Requests refused or failed, by code", ["code"], registry=own)
        self.first_token = Histogram(
            "sessile_time_to_first_token_seconds", "Request to first token", buckets=_LATENCIES, registry=own
        )
        self.per_token = Histogram(
            "sessile_time_per_output_token_seconds",
            "Mean time of a turn's tokens after the first",
            buckets=_TOKEN_TIMES,
            registry=own,
        )
        self.duration = Histogram(
            "sessile_turn_duration_seconds", "Request to the end of its turn", buckets=_LATENCIES, registry=own
        )
        self.registry.register(_EngineCollector(read_stats))

    def start_turn(self, endpoint: str) -> TurnMeter:
        """Count a turn that begins now."""
        self.in_flight.inc()
        return TurnMeter(self, endpoint)

    def count_error(self, error: SessileError) -> None:
        """Count an answer that was an error."""
        self.errors.labels(http_status_of(error)[1]).inc()


class TurnMeter:
    """The clock of one turn. Exactly one of its ends counts: the first."""

    def __init__(self, metrics: HttpMetrics, endpoint: str) -> None:
        self._metrics = metrics
        self._endpoint = endpoint
        self._start = time.perf_counter()
        self._first: float | None = None
        self._tokens = 0
        self._over = False

    def tokens(self, count: int) -> None:
        """``count`` tokens arrived."""
        if self._first is None and count:
            self._first = time.perf_counter()
            self._metrics.first_token.observe(self._first - self._start)
        self._tokens += count

    def finished(self, finished: TurnFinished) -> None:
        """The turn is complete."""
        now = time.perf_counter()
        if self._first is not None and self._tokens > 1:
            self._metrics.per_token.observe((now - self._first) / (self._tokens - 1))
        self._metrics.duration.observe(now - self._start)
        self.ended(finished.finish_reason.value)

    def failed(self, error: SessileError) -> None:
        """The turn ended in an error."""
        self.ended(http_status_of(error)[1])

    def ended(self, outcome: str) -> None:
        """The turn is over; a second call counts nothing."""
        if not self._over:
            self._over = True
            self._metrics.in_flight.dec()
            self._metrics.turns.labels(self._endpoint, outcome).inc()


class _EngineCollector(Collector):
    """The engine's counters at the time of a scrape. They start again at 0 when the engine was restarted."""

    def __init__(self, read_stats: Callable[[], EngineStats]) -> None:
        self._read_stats = read_stats

    def collect(self) -> Iterator[Metric]:
        stats = self._read_stats()
        sources = CounterMetricFamily(
            "sessile_prompt_tokens_by_source",
            "Prompt tokens by where their KV came from, counted once, at admission",
            labels=["source"],
        )
        for source, count in msgspec.structs.asdict(stats.prompt_tokens_by_source).items():
            sources.add_metric([source], count)
        yield sources
        blocks = GaugeMetricFamily("sessile_kv_blocks", "Blocks of the KV pool by state", labels=["state"])
        for state in ("free", "cached", "used"):
            blocks.add_metric([state], getattr(stats, f"{state}_blocks"))
        yield blocks
        turns = GaugeMetricFamily("sessile_engine_turns", "Turns in the engine by state", labels=["state"])
        for state in ("running", "waiting"):
            turns.add_metric([state], getattr(stats, state))
        yield turns
        for name, help_text, value in (
            ("sessile_generated_tokens", "Tokens sampled", stats.generated_tokens),
            ("sessile_engine_steps", "Steps of the engine", stats.steps),
            ("sessile_engine_step_seconds", "Seconds spent in steps", stats.step_s),
            ("sessile_engine_model_seconds", "Of these, seconds in the model", stats.model_s),
            ("sessile_evicted_blocks", "Blocks evicted from the KV pool", stats.evicted_blocks),
            ("sessile_preemptions", "Turns that lost their blocks for another's", stats.preemptions),
        ):
            yield CounterMetricFamily(name, help_text, value=value)
        yield from tier_families(stats.tiers)
