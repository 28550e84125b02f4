"""The offline lane as Prometheus families."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ....sessions.batches.batch import BatchStatus
from ....sessions.batches.counts import BatchCounts
from ..server_metrics import labelled


class BatchCollector(Collector):
    """All families at the time of a scrape."""

    def __init__(self, read_counts: Callable[[], BatchCounts]) -> None:
        self._read_counts = read_counts

    def collect(self) -> Iterator[Metric]:
        counts = self._read_counts()
        yield labelled(
            GaugeMetricFamily("sessile_batches", "Batches that are not over, by status", labels=["status"]),
            {status.value: counts.unfinished.get(status, 0) for status in BatchStatus if not status.is_over},
        )
        yield GaugeMetricFamily(
            "sessile_batches_stalled", "Tenants whose batches stand still because of an error", value=counts.stalled
        )
        yield labelled(
            CounterMetricFamily("sessile_batches_ended", "Batches that are over, by how they ended", labels=["status"]),
            {status.value: counts.ended.get(status, 0) for status in BatchStatus if status.is_over},
        )
        yield labelled(
            GaugeMetricFamily("sessile_batch_lines", "Lines of batches that have no result yet", labels=["state"]),
            {"running": counts.lines_running, "waiting": max(0, counts.lines_left - counts.lines_running)},
        )
        yield labelled(
            CounterMetricFamily("sessile_batch_lines_ended", "Lines of batches by outcome", labels=["outcome"]),
            {"succeeded": counts.lines_succeeded, "failed": counts.lines_failed},
        )
        yield CounterMetricFamily(
            "sessile_batch_line_retries", "Times that a line was put off, to be run again", value=counts.retries
        )
