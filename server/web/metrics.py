"""Prometheus: what HTTP counts itself, and what the server knows. One registry an application, no globals."""

from __future__ import annotations

import collections
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...sessions.errors import SessileError
from ...sessions.manager.turn_events import TurnFinished
from ..observe.histogram import LATENCIES, TOKEN_TIMES, Histogram
from .errors import http_status_of
from .parts import WebParts
from .server_metrics import ServerCollector, histogram_family, labelled


class HttpMetrics(Collector):
    """Counters of the HTTP front. ``parts`` are asked at each scrape."""

    def __init__(self, parts: WebParts) -> None:
        self._readiness = parts.readiness
        self._connections = parts.connections
        self._copies_fail = parts.copies_fail
        self.turns: collections.Counter[tuple[str, str]] = collections.Counter()  # by endpoint and outcome
        self.in_flight = 0
        self.errors: collections.Counter[str] = collections.Counter()  # by code
        self.first_token = Histogram(LATENCIES)
        self.per_token = Histogram(TOKEN_TIMES)
        self.duration = Histogram(LATENCIES)
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        self.registry.register(ServerCollector(lambda: parts.engine.stats, parts.observatory))

    def collect(self) -> Iterator[Metric]:
        """What HTTP counts, at the time of a scrape."""
        turns = CounterMetricFamily(
            "sessile_http_turns", "Turns over HTTP by endpoint and outcome", labels=["endpoint", "outcome"]
        )
        for (endpoint, outcome), count in self.turns.items():
            turns.add_metric([endpoint, outcome], count)
        yield turns
        yield GaugeMetricFamily("sessile_http_turns_in_flight", "Turns over HTTP that run now", self.in_flight)
        connections = self._connections()
        yield GaugeMetricFamily("sessile_http_connections", "Connections over HTTP", connections.open)
        yield CounterMetricFamily(
            "sessile_http_connections_refused", "Connections beyond the bound", connections.refused
        )
        now = self._readiness()
        yield GaugeMetricFamily("sessile_ready", "1 while turns are taken", int(now.takes_turns))
        yield GaugeMetricFamily(
            "sessile_sessions_kept", "0 while the session store cannot be written", int(not now.persistence.sessions)
        )
        yield GaugeMetricFamily(
            "sessile_copies_made", "0 after a copy of the data could not be made", int(not self._copies_fail())
        )
        errors = CounterMetricFamily("sessile_http_errors", "Requests refused or failed, by code", labels=["code"])
        yield labelled(errors, self.errors)
        for name, help_text, histogram in (
            ("sessile_http_time_to_first_token_seconds", "HTTP request to first token", self.first_token),
            ("sessile_http_time_per_output_token_seconds", "Mean time of a turn's later tokens", self.per_token),
            ("sessile_http_turn_duration_seconds", "HTTP request to the end of its turn", self.duration),
        ):
            yield histogram_family(name, help_text, histogram)

    def start_turn(self, endpoint: str) -> TurnMeter:
        """Count a turn that begins now."""
        self.in_flight += 1
        return TurnMeter(self, endpoint)

    def count_error(self, error: SessileError) -> None:
        """Count an answer that was an error."""
        self.errors[http_status_of(error)[1]] += 1


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
            self._metrics.in_flight -= 1
            self._metrics.turns[self._endpoint, outcome] += 1
