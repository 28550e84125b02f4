"""OTel GenAI spans with their content: OTLP JSON (``resourceSpans``), or ``{"spans": […]}`` and span lines.

Spans of one ``gen_ai.conversation.id`` (else of one trace) make a session. Which request continues which is found from
their messages, what ran at the same time from their times.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..workload.plan import Message, SessionPlan
from .lineage import WholeRequest, turns_of
from .messages import message_of, text_of, tools_of
from .source import BadLines, Unusable, files_of, json_rows, number_of, seconds_of

_OUTPUT_COUNTS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")


def sniff(first: object) -> bool:
    """Whether a first object is of this format."""
    if isinstance(first, list):
        return bool(first) and sniff(first[0])
    if not isinstance(first, dict):
        return False
    if "resourceSpans" in first or isinstance(first.get("spans"), list):
        return True
    return isinstance(first.get("attributes"), dict | list) and any(key in first for key in ("traceId", "trace_id"))


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """Sessions by the time of their first span. Spans without messages (tools, agents) are passed over."""
    found: dict[str, list[tuple[WholeRequest, tuple[dict[str, object], ...]]]] = {}
    for file in files_of(path, (".json", ".jsonl")):
        for number, row in json_rows(file, bad):
            with bad.leaving_out(file, number):
                for span in _spans(row):
                    _take(span, found)
    sessions = [_session(name, spans) for name, spans in found.items()]
    first = min((start for _, start in sessions), default=0.0)
    sessions.sort(key=lambda entry: entry[1])
    return [msgspec.structs.replace(plan, arrival_s=round(start - first, 6)) for plan, start in sessions]


def _session(name: str, spans: list[tuple[WholeRequest, tuple[dict[str, object], ...]]]) -> tuple[SessionPlan, float]:
    spans = sorted(spans, key=lambda span: span[0].started_s or 0.0)
    turns = turns_of([request for request, _ in spans])
    return SessionPlan(session_id=name, turns=turns, tools=spans[0][1]), spans[0][0].started_s or 0.0


def _spans(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "resourceSpans" in row:
        for resource in row["resourceSpans"]:
            for scope in resource.get("scopeSpans", ()):
                yield from scope.get("spans", ())
    elif isinstance(row.get("spans"), list):
        yield from row["spans"]
    else:
        yield row


def _take(span: object, found: dict[str, list[tuple[WholeRequest, tuple[dict[str, object], ...]]]]) -> None:
    if not isinstance(span, dict):
        raise Unusable("a span that is not an object")
    attributes = _attributes(span.get("attributes"))
    rows = _json(attributes.get("gen_ai.input.messages"))
    if not isinstance(rows, list) or not rows:
        return
    messages = [message_of(message) for message in rows]
    system = _json(attributes.get("gen_ai.system_instructions"))
    if system and messages[0].role != "system":
        messages.insert(0, Message("system", text_of(system)))
    outputs = _json(attributes.get("gen_ai.output.messages"))
    answer = message_of(outputs[0]) if isinstance(outputs, list) and outputs else None
    count = next((n for key in _OUTPUT_COUNTS if (n := number_of(attributes.get(key)))), None)
    request = WholeRequest(
        messages=tuple(messages),
        answer=answer,
        output_tokens=int(count) if count else None,
        started_s=_time(span, "startTimeUnixNano", "start_time"),
        ended_s=_time(span, "endTimeUnixNano", "end_time"),
        agent=str(attributes.get("gen_ai.agent.name", "main")),
    )
    name = attributes.get("gen_ai.conversation.id") or span.get("traceId") or span.get("trace_id") or "trace"
    tools = _json(attributes.get("gen_ai.tool.definitions"))
    found.setdefault(str(name), []).append((request, tools_of(tools)))


def _attributes(raw: object) -> dict[str, Any]:
    if isinstance(raw, dict):
        return raw
    if not isinstance(raw, list):
        return {}
    return {str(entry.get("key")): _value(entry.get("value")) for entry in raw if isinstance(entry, dict)}


def _value(value: object) -> Any:
    if not isinstance(value, dict):
        return value
    if "intValue" in value:
        return int(value["intValue"])
    return next((value[key] for key in ("stringValue", "doubleValue", "boolValue") if key in value), None)


def _json(value: object) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unusable(f"an attribute that should hold JSON: {error}") from None


def _time(span: dict[str, Any], nano: str, iso: str) -> float | None:
    if nano in span:
        return int(span[nano]) / 1e9
    return seconds_of(span.get(iso)) or number_of(span.get(iso))
