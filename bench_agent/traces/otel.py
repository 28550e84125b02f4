"""OTel GenAI spans with their content: OTLP JSON, the console exporter's objects, or ``{"spans": […]}`` and span lines.

Spans of one ``gen_ai.conversation.id`` (else of one trace) make a session. Which request continues which is found from
their messages, what ran at the same time from their times. Where the versions of the conventions put the messages is
told by ``otel_content``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..workload.plan import SessionPlan
from .lineage import Tools, WholeRequest, session_of, since_the_first
from .messages import tools_of
from .otel_content import SpanContent, attributes_of, from_json, plain
from .rows import objects
from .source import BadLines, Place, Unusable, files_of, number_of, seconds_of, tokens_of

_OUTPUT_COUNTS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens")
_SESSIONS = ("gen_ai.conversation.id", "session.id", "exgentic.session.id", "gen_ai.session.id")
_RESOURCES = ("resourceSpans", "resource_spans")
_LOGS = ("resourceLogs", "resource_logs")
_CHATS = ("chat", "text_completion", "generate_content", "completion")


class _Span(msgspec.Struct, frozen=True):
    """A span as far as it is needed: its attributes, and its events' and log records' names and values."""

    trace: str
    key: str
    parent: str | None
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    started_s: float | None
    ended_s: float | None


def sniff(first: object) -> bool:
    """Whether a first value is of this format."""
    if isinstance(first, list):
        return bool(first) and sniff(first[0])
    if not isinstance(first, dict):
        return False
    if any(isinstance(first.get(key), list) for key in (*_RESOURCES, *_LOGS, "spans")):
        return True
    named = any(key in first for key in ("traceId", "trace_id")) or isinstance(first.get("context"), dict)
    return isinstance(first.get("attributes"), dict | list) and named


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """Sessions by the time of their first span. Spans without messages (tools, agents) are passed over."""
    gathered = _Spans()
    for file in files_of(path, (".json", ".jsonl")):
        for place, row in objects(file, bad):
            with bad.leaving_out(place):
                for number, span in enumerate(_spans(row), 1):
                    at = place if span is row else Place(file, place.line, number)
                    with bad.leaving_out(at):
                        gathered.take(span)
    found: dict[str, list[tuple[WholeRequest, Tools]]] = defaultdict(list)
    for name, request, tools in gathered.requests(bad.remarks):
        found[name].append((request, tools))
    sessions = since_the_first(
        session_of(name, _with_a_main_agent(requests), bad.remarks) for name, requests in found.items()
    )
    return sorted(sessions, key=lambda session: session.arrival_s)


class _Spans:
    """Gathers spans, and what log records say of them; then makes requests of those that have messages."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, str], _Span] = {}
        self._contents: dict[tuple[str, str], tuple[SpanContent, Tools, int | None, Counter[str]]] = {}

    def take(self, row: object) -> None:
        """A span, or a log record of one; what comes twice counts once. Raises Unusable."""
        span = _span(row)
        place = span.trace, span.key
        known = self._spans.get(place)
        if known is not None:
            SpanContent.read(span.attributes, span.events, Counter())  # broken by itself?
            span = _merged(known, span)
        remarks: Counter[str] = Counter()
        content = SpanContent.read(span.attributes, span.events, remarks)
        tools = tools_of(from_json(span.attributes.get("gen_ai.tool.definitions")))
        self._contents[place] = content, tools, tokens_of(span.attributes, *_OUTPUT_COUNTS), remarks
        self._spans[place] = span

    def requests(self, remarks: Counter[str]) -> Iterator[tuple[str, WholeRequest, Tools]]:
        """The name of the session, the request and its tools, for each span with messages."""
        for place, span in self._spans.items():
            content, tools, output, said = self._contents[place]
            if not content.messages:
                if span.attributes.get("gen_ai.operation.name") in _CHATS:
                    remarks["chat spans without their messages (record them with content capture on)"] += 1
                continue
            remarks.update(said)
            name = next((str(span.attributes[key]) for key in _SESSIONS if span.attributes.get(key)), span.trace)
            request = WholeRequest(
                messages=content.messages,
                answer=content.answer,
                output_tokens=output or None,
                started_s=span.started_s,
                ended_s=span.ended_s,
                agent=self._agent(span),
            )
            yield name, request, tools

    def _agent(self, span: _Span) -> str:
        """The name of the agent that sent it: its own, or that of the nearest span around it that has one."""
        seen: set[str] = set()
        at: _Span | None = span
        while at is not None and at.key not in seen:
            named = at.attributes.get("gen_ai.agent.name")
            if named:
                return str(named)
            seen.add(at.key)
            at = None if at.parent is None else self._spans.get((at.trace, at.parent))
        return "main"


def _with_a_main_agent(found: list[tuple[WholeRequest, Tools]]) -> list[tuple[WholeRequest, Tools]]:
    """The agent that asked first is the main one, whatever its name."""
    main = min((request for request, _ in found), key=lambda request: request.started_s or 0.0).agent
    return [
        (msgspec.structs.replace(request, agent="main") if request.agent == main else request, tools)
        for request, tools in found
    ]


def _spans(row: dict[str, Any]) -> Iterator[object]:
    for outer, scopes, inner in (
        (_RESOURCES, ("scopeSpans", "scope_spans", "instrumentationLibrarySpans"), "spans"),
        (_LOGS, ("scopeLogs", "scope_logs"), "logRecords"),
    ):
        for resource in (one for key in outer for one in row.get(key) or ()):
            for scope in (one for key in scopes for one in resource.get(key) or ()):
                yield from scope.get(inner) or scope.get("log_records") or ()
    if any(key in row for key in (*_RESOURCES, *_LOGS)):
        return
    if isinstance(row.get("spans"), list):
        yield from row["spans"]
    else:
        yield row


def _span(row: object) -> _Span:
    if not isinstance(row, dict):
        raise Unusable("a span that is not an object")
    context = row["context"] if isinstance(row.get("context"), dict) else row
    attributes = attributes_of(row.get("attributes"))
    events = [_event(event) for event in row.get("events") or ()]
    started = _time(row, "startTimeUnixNano", "start_time", "start_time_unix_nano")
    ended = _time(row, "endTimeUnixNano", "end_time", "end_time_unix_nano")
    if "body" in row or "eventName" in row or "event_name" in row:
        name = row.get("eventName") or row.get("event_name") or row.get("name") or attributes.get("event.name")
        events.append((str(name), attributes | {"body": plain(row.get("body"))}))
        started = ended = _time(row, "timeUnixNano", "timestamp", "time_unix_nano")
        attributes = {key: attributes[key] for key in attributes if key.startswith(("gen_ai.conv", "gen_ai.usage"))}
    if started is not None and ended is not None:
        ended = max(started, ended)
    parent = row.get("parentSpanId") or row.get("parent_span_id") or row.get("parent_id")
    key = context.get("spanId") or context.get("span_id") or f"{started}/{ended}/{len(events)}"
    trace = context.get("traceId") or context.get("trace_id") or "trace"
    return _Span(str(trace), str(key), str(parent) if parent else None, attributes, events, started, ended)


def _merged(known: _Span, more: _Span) -> _Span:
    """One span of what two rows say of it."""
    starts = [stamp for stamp in (known.started_s, more.started_s) if stamp is not None]
    ends = [stamp for stamp in (known.ended_s, more.ended_s) if stamp is not None]
    return _Span(
        known.trace,
        known.key,
        known.parent or more.parent,
        more.attributes | known.attributes,
        known.events + [event for event in more.events if event not in known.events],
        min(starts, default=None),
        max(ends, default=None),
    )


def _event(row: object) -> tuple[str, dict[str, Any]]:
    if not isinstance(row, dict):
        raise Unusable("an event that is not an object")
    attributes = attributes_of(row.get("attributes"))
    return str(row.get("name") or attributes.get("event.name")), attributes | {"body": plain(row.get("body"))}


def _time(row: Mapping[str, Any], *keys: str) -> float | None:
    """Seconds: of nanoseconds under a key that says so, else of ISO 8601 or of seconds."""
    for key in keys:
        value = row.get(key)
        if value is None:
            continue
        if "nano" in key.lower():
            return int(value) / 1e9
        found = seconds_of(value)
        return number_of(value) if found is None else found
    return None
