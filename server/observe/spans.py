"""OpenTelemetry: a span for each turn, with the attributes that GenAI has, and children for where its time went.

The packages are an extra (``sessile[otel]``); nothing of them is imported unless an endpoint is configured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...sessions.errors import ConfigError
from .turn_record import TurnRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_NS = 1_000_000_000


class TurnSpans:
    """Makes spans of turns that have ended. ``provider`` exports them, in threads of its own."""

    def __init__(self, provider: TracerProvider, model: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("sessile")
        self._model = model

    def write(self, record: TurnRecord, content: Callable[[], dict[str, Any]] | None) -> None:
        """See ``RecordSink``. What was said is no part of a span."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        started = round(record.started_at * _NS)
        span = self._tracer.start_span(
            f"chat {self._model}", kind=SpanKind.SERVER, start_time=started, attributes=self._attributes(record)
        )
        if record.outcome == "error":
            span.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(span)
        at = started
        for name, seconds in _phases(record):
            child = self._tracer.start_span(name, context=inside, start_time=at)
            at += round(seconds * _NS)
            child.end(end_time=at)
        span.end(end_time=max(at, started + round(record.duration_s * _NS)))

    def close(self) -> None:
        """Send what was not sent yet."""
        self._provider.shutdown()

    def _attributes(self, record: TurnRecord) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "sessile",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.response.finish_reasons": (record.outcome,),
            "sessile.tenant": record.tenant,
        }
        if record.conversation:
            attributes["gen_ai.conversation.id"] = record.conversation
        if record.turn.sampling.temperature is not None:
            attributes["gen_ai.request.temperature"] = record.turn.sampling.temperature
        if record.miss is not None:
            attributes["sessile.miss.rule"] = record.miss.rule
        usage = record.usage
        if usage is not None:
            attributes |= {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.tokens_by_source.cached,
                "sessile.reusable_tokens": usage.reusable_tokens,
                "sessile.drafted_tokens": usage.drafted_tokens,
                "sessile.accepted_tokens": usage.accepted_tokens,
            }
        return attributes


def _phases(record: TurnRecord) -> list[tuple[str, float]]:
    usage = record.usage
    if usage is None:
        return []
    return [
        ("queue", usage.queue_s),
        ("load", usage.load_s),
        ("prefill", usage.prefill_s),
        ("decode", usage.decode_s),
    ]


def open_spans(endpoint: str, model: str, version: str) -> TurnSpans:
    """Spans that go to ``endpoint``, a base address of OTLP over HTTP.

    Raises:
        ConfigError: the packages are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"spans need {error.name}", field="observe.otlp_endpoint", remedy="pip install 'sessile[otel]'"
        ) from error
    resource = Resource.create({"service.name": "sessile", "service.version": version})
    provider = TracerProvider(resource=resource)
    exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return TurnSpans(provider, model)
