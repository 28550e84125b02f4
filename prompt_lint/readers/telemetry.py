"""OpenTelemetry GenAI spans and events, and HTTP captures (HAR)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from ..errors import UnusableInput
from ..request import ApiShape, Json, Request, Usage, shape_of
from .records import Record
from .times import seconds
from .usage import response_text, usage_of


def looks_like_otlp(value: Any) -> bool:
    """An OTLP export of traces."""
    return isinstance(value, dict) and "resourceSpans" in value


def read_otlp(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """Spans with GenAI attributes, in the order of their start."""
    for record in records:
        if not looks_like_otlp(record.value):
            raise UnusableInput(file, "not an OTLP export (resourceSpans is missing)", record.line)
        spans = [
            span
            for resource in record.value["resourceSpans"]
            for scope in resource.get("scopeSpans") or []
            for span in scope.get("spans") or []
        ]
        spans.sort(key=lambda s: int(s.get("startTimeUnixNano") or 0))
        for span in spans:
            attributes = {a["key"]: _value(a.get("value") or {}) for a in span.get("attributes") or []}
            if any(key.startswith("gen_ai.request") or key == "gen_ai.operation.name" for key in attributes):
                yield _span(file, record.line, span, attributes)


def _value(value: Json) -> Any:
    for key, item in value.items():
        if key == "intValue":
            return int(item)
        if key == "arrayValue":
            return [_value(v) for v in item.get("values") or []]
        return item
    return None


def _parsed(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _span(file: str, line: int, span: Json, attributes: Json) -> Request:
    messages = [_message(m) for m in _parsed(attributes.get("gen_ai.input.messages")) or []]
    instructions = _parsed(attributes.get("gen_ai.system_instructions"))
    if instructions:
        messages.insert(0, {"role": "system", "content": _parts(instructions)})
    body: Json = {"model": attributes.get("gen_ai.request.model"), "messages": messages}
    tools = _parsed(attributes.get("gen_ai.tool.definitions"))
    if tools:
        body["tools"] = tools
    request = Request(body, ApiShape.OPENAI_CHAT, file=file, line=line, complete=False)
    request.session = attributes.get("gen_ai.conversation.id") or span.get("traceId")
    request.provider = attributes.get("gen_ai.provider.name") or attributes.get("gen_ai.system")
    started, ended = seconds(span.get("startTimeUnixNano")), seconds(span.get("endTimeUnixNano"))
    request.timestamp = started
    if started is not None and ended is not None:
        request.latency_ms = 1000 * (ended - started)
    request.usage = _otel_usage(attributes)
    return request


def _first(attributes: Json, *keys: str) -> int | None:
    return next((int(attributes[key]) for key in keys if attributes.get(key) is not None), None)


def _otel_usage(attributes: Json) -> Usage | None:
    total = _first(attributes, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
    if total is None:
        return None
    cached = _first(
        attributes,
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.input_tokens.cached",
    )
    written = _first(attributes, "gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_creation_input_tokens")
    return Usage(
        total, cached, written, _first(attributes, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
    )


def _message(message: Any) -> Json:
    if not isinstance(message, dict):
        return {"role": "user", "content": str(message)}
    if "parts" not in message:
        return message
    return {"role": message.get("role", "user"), "content": _parts(message["parts"])}


def _parts(parts: Any) -> Any:
    texts = [p.get("content") for p in parts if isinstance(p, dict) and p.get("type") == "text"]
    return texts[0] if len(parts) == 1 and len(texts) == 1 else parts


def looks_like_genai_event(value: Any) -> bool:
    """An old-style GenAI event: one message."""
    return isinstance(value, dict) and str(value.get("name", "")).startswith("gen_ai.") and "body" in value


def read_genai_events(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """Events of one span are the messages of one request."""
    spans: dict[str, Request] = {}
    for record in records:
        if not looks_like_genai_event(record.value):
            raise UnusableInput(file, "not a GenAI event", record.line)
        value: Json = record.value
        span = str(value.get("spanId"))
        if span not in spans:
            request = Request({"messages": []}, ApiShape.OPENAI_CHAT, file=file, line=record.line, complete=False)
            request.session = value.get("traceId")
            request.provider = (value.get("attributes") or {}).get("gen_ai.system")
            spans[span] = request
        name = str(value["name"])
        if name.endswith(".message"):
            spans[span].body["messages"].append({"role": name.split(".")[1], **(value["body"] or {})})
    yield from spans.values()


def looks_like_har(value: Any) -> bool:
    """An HTTP archive."""
    return isinstance(value, dict) and isinstance(value.get("log"), dict) and "entries" in value["log"]


_SESSION_HEADERS = (
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-session-id",
    "x-session-affinity",
    "x-correlation-id",
    "x-dynamo-session-id",
    "helicone-session-id",
)


def read_har(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """Entries whose body is a request to a model, exactly as sent. Raises: UnusableInput when there is none."""
    for record in records:
        if not looks_like_har(record.value):
            raise UnusableInput(file, "not a HAR file (log.entries is missing)", record.line)
        found = False
        for entry in record.value["log"]["entries"]:
            request = _entry(file, record.line, entry)
            if request:
                found = True
                yield request
        if not found:
            raise UnusableInput(file, "no request to a model in this capture", record.line)


def _entry(file: str, line: int, entry: Json) -> Request | None:
    sent: Json = entry.get("request") or {}
    body = _parsed((sent.get("postData") or {}).get("text") or "")
    shape = shape_of(body) if isinstance(body, dict) else None
    if shape is None:
        return None
    request = Request(body, shape, file=file, line=line)
    headers = {str(h.get("name")).lower(): h.get("value") for h in sent.get("headers") or []}
    request.session = next((str(headers[name]) for name in _SESSION_HEADERS if headers.get(name)), None)
    request.timestamp = seconds(entry.get("startedDateTime"))
    request.latency_ms = entry.get("time")
    timings = entry.get("timings") or {}
    request.ttft_ms = timings.get("wait")
    answer = _answer((entry.get("response") or {}).get("content") or {})
    request.usage = usage_of(answer)
    request.response_text = response_text(answer)
    return request


def _answer(content: Json) -> Any:
    text = str(content.get("text") or "")
    if content.get("encoding") == "base64":
        try:
            text = base64.b64decode(text).decode("utf-8", "replace")
        except ValueError:
            return None
    return _parsed(text)
