"""A span a turn, with its parts."""

from __future__ import annotations

import pytest

from sessile.server.engine.messages import SubmitTurn, TokensBySource, TurnUsage
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.observe.spans import TurnSpans
from sessile.server.observe.turn_record import TurnRecord
from sessile.sessions.manager.turn_events import Miss

trace = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")


def spans_of(record: TurnRecord):
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = TurnSpans(provider, "tiny")
    spans.write(record, None)
    spans.close()
    return exporter.get_finished_spans()


def record(outcome: str = "stop", usage: TurnUsage | None = None, miss: Miss | None = None) -> TurnRecord:
    turn = SubmitTurn(turn_id="t", token_ids=[1], sampling=SamplingParams(temperature=0.5), tenant="acme")
    return TurnRecord(
        turn=turn, conversation="ses_1", started_at=100.0, ttft_s=0.3, duration_s=2.0, outcome=outcome, usage=usage,
        miss=miss,
    )  # fmt: skip


def test_a_turn_is_a_span_with_its_phases_one_after_the_other() -> None:
    usage = TurnUsage(
        prompt_tokens=50, completion_tokens=7, tokens_by_source=TokensBySource(device=40, computed=10),
        reusable_tokens=45, queue_s=0.25, load_s=0.5, prefill_s=0.25, decode_s=1.0,
    )  # fmt: skip
    miss = Miss(rule="PL803", name="evicted", explanation="", remedy="", lost_tokens=5)
    *parts, turn = spans_of(record(usage=usage, miss=miss))
    assert (turn.name, turn.attributes["gen_ai.usage.input_tokens"]) == ("chat tiny", 50)
    assert turn.attributes["gen_ai.usage.cache_read.input_tokens"] == 40
    assert turn.attributes["gen_ai.conversation.id"] == "ses_1"
    assert turn.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert turn.attributes["sessile.miss.rule"] == "PL803"
    assert [part.name for part in parts] == ["queue", "load", "prefill", "decode"]
    assert all(part.parent.span_id == turn.context.span_id for part in parts)
    assert [part.start_time for part in parts[1:]] == [part.end_time for part in parts[:-1]]
    assert (turn.start_time, parts[0].start_time, turn.end_time) == (100_000_000_000, 100_000_000_000, 102_000_000_000)


def test_a_turn_that_failed_says_so() -> None:
    (turn,) = spans_of(record(outcome="error"))
    assert turn.status.status_code.name == "ERROR"
