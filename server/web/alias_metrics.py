"""The same numbers under the names that vLLM and SGLang have for them, for dashboards and routers made for those."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ..engine.messages import EngineStats
from ..observe.histogram import Histogram
from ..observe.observatory import Observatory


def alias_families(stats: EngineStats, seen: Observatory) -> Iterator[Metric]:
    """vLLM's and SGLang's names, with the label ``model_name``."""
    yield from _vllm(stats, seen)
    yield from _sglang(stats, seen)


def _vllm(stats: EngineStats, seen: Observatory) -> Iterator[Metric]:
    sources, model = stats.prompt_tokens_by_source, seen.model
    used = stats.used_blocks / stats.total_blocks if stats.total_blocks else 0.0
    for name, value in (
        ("vllm:prefix_cache_queries", sources.total),
        ("vllm:prefix_cache_hits", sources.cached),
        ("vllm:prompt_tokens", sources.total),
        ("vllm:prompt_tokens_cached", sources.cached),
        ("vllm:generation_tokens", stats.generated_tokens),
        ("vllm:num_preemptions", stats.preemptions),
        ("vllm:spec_decode_num_draft_tokens", stats.drafted_tokens),
        ("vllm:spec_decode_num_accepted_tokens", stats.accepted_tokens),
    ):
        yield _counter(name, model, value)
    by_source = CounterMetricFamily("vllm:prompt_tokens_by_source", "As vLLM has it", labels=["model_name", "source"])
    for source, tokens in msgspec.structs.asdict(sources).items():
        by_source.add_metric([model, source], tokens)
    yield by_source
    for name, gauge in (
        ("vllm:num_requests_running", stats.running),
        ("vllm:num_requests_waiting", stats.waiting),
        ("vllm:kv_cache_usage_perc", used),
    ):
        yield _gauge(name, model, gauge)
    times = seen.times
    for name, histogram in (
        ("vllm:time_to_first_token_seconds", times.time_to_first_token),
        ("vllm:inter_token_latency_seconds", times.inter_token_latency),
        ("vllm:e2e_request_latency_seconds", times.turn),
        ("vllm:request_queue_time_seconds", times.queue),
        ("vllm:request_prefill_time_seconds", times.prefill),
        ("vllm:request_decode_time_seconds", times.decode),
    ):
        yield _histogram(name, model, histogram)
    ended = CounterMetricFamily("vllm:request_success", "As vLLM has it", labels=["model_name", "finished_reason"])
    for outcome, count in times.outcomes.items():
        ended.add_metric([model, {"aborted": "abort"}.get(outcome, outcome)], count)
    yield ended


def _sglang(stats: EngineStats, seen: Observatory) -> Iterator[Metric]:
    sources, model = stats.prompt_tokens_by_source, seen.model
    used = stats.used_blocks / stats.total_blocks if stats.total_blocks else 0.0
    for name, gauge in (
        ("sglang:num_running_reqs", stats.running),
        ("sglang:num_queue_reqs", stats.waiting),
        ("sglang:token_usage", used),
        ("sglang:cache_hit_rate", sources.cached / sources.total if sources.total else 0.0),
    ):
        yield _gauge(name, model, gauge)
    for name, value in (
        ("sglang:prompt_tokens", sources.total),
        ("sglang:cached_tokens", sources.cached),
        ("sglang:generation_tokens", stats.generated_tokens),
    ):
        yield _counter(name, model, value)
    times = seen.times
    for name, histogram in (
        ("sglang:time_to_first_token_seconds", times.time_to_first_token),
        ("sglang:inter_token_latency_seconds", times.inter_token_latency),
        ("sglang:e2e_request_latency_seconds", times.turn),
    ):
        yield _histogram(name, model, histogram)


def _counter(name: str, model: str, value: float) -> Metric:
    family = CounterMetricFamily(name, _help(name), labels=["model_name"])
    family.add_metric([model], value)
    return family


def _gauge(name: str, model: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, _help(name), labels=["model_name"])
    family.add_metric([model], value)
    return family


def _histogram(name: str, model: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, _help(name), labels=["model_name"])
    family.add_metric([model], histogram.cumulative(), histogram.total)
    return family


def _help(name: str) -> str:
    return f"As {'vLLM' if name.startswith('vllm') else 'SGLang'} has it"
