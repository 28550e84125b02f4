"""OpenTelemetry: spans and log records of model calls, exported as OTLP JSON.

Three conventions are read: GenAI's own (`gen_ai.input.messages`, on spans, their events or log records), OpenLLMetry's
(`gen_ai.prompt.0.content`) and OpenInference's (`llm.input_messages.0.message.content`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import UnusableInput
from ..request import ApiShape, Json, Request, Usage
from .otel_content import messages_of, tools_of
from .records import Record, unpacked
from .times import seconds

_OTHER_OPERATIONS = {"execute_tool", "embeddings", "invoke_agent", "create_agent", "invoke_workflow"}
_CALL_KEYS = ("gen_ai.request", "gen_ai.input.messages", "gen_ai.prompt.0.", "llm.input_messages.", "llm.model_name")
_NO_CONTENT = (
    "the spans hold neither messages nor token counts; let the instrumentation record content "
    "(OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true)"
)


def looks_like_otlp(value: Any) -> bool:
    """An OTLP export of traces or logs."""
    return isinstance(value, dict) and ("resourceSpans" in value or "resourceLogs" in value)


def read_otlp(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """Calls of models, within a record in the order of their start.

    Raises: UnusableInput for another document, and when no call has messages or counts.
    """
    calls = told = 0
    for record in records:
        if not looks_like_otlp(record.value):
            raise UnusableInput(file, "not an OTLP export (resourceSpans and resourceLogs are missing)", record.line)
        spans = [*_nested(record.value, "resourceSpans", "scopeSpans", "spans"), *_logged(record.value)]
        spans.sort(key=_start)
        for span in spans:
            attributes = _attributes(span)
            for event in span.get("events") or []:
                attributes = _with_event(attributes, event)
            if _is_call(attributes):
                request = _call(file, record.line, span, attributes)
                calls += 1
                told += bool(request.body["messages"]) or request.usage is not None
                yield request
    if calls and not told:
        raise UnusableInput(file, _NO_CONTENT)


def _nested(value: Json, *keys: str) -> list[Json]:
    """The items of lists in lists."""
    found = [value]
    for key in keys:
        found = [item for holder in found for item in holder.get(key) or []]
    return found


def _logged(value: Json) -> list[Json]:
    """Log records of calls as spans; records of single messages are put together by their span."""
    spans: dict[str, Json] = {}
    for record in _nested(value, "resourceLogs", "scopeLogs", "logRecords"):
        attributes = _attributes(record)
        name = str(record.get("eventName") or attributes.get("event.name") or "")
        if not name.startswith("gen_ai."):
            continue
        span = spans.setdefault(
            str(record.get("spanId") or len(spans)),
            {
                "traceId": record.get("traceId"),
                "startTimeUnixNano": record.get("timeUnixNano") or record.get("observedTimeUnixNano"),
                "attributes": [],
                "events": [],
            },
        )
        body = record.get("body")
        own = [{"key": "gen_ai.event.content", "value": body}] if body else []
        span["events"].append({"name": name, "attributes": [*(record.get("attributes") or []), *own]})
    return list(spans.values())


def _start(span: Json) -> int:
    return int(span.get("startTimeUnixNano") or 0)


def _attributes(holder: Json) -> Json:
    return {str(a["key"]): _value(a.get("value") or {}) for a in holder.get("attributes") or []}


def _value(value: Json) -> Any:
    for key, item in value.items():
        if key == "intValue":
            return int(item)
        if key == "arrayValue":
            return [_value(v) for v in item.get("values") or []]
        if key == "kvlistValue":
            return {str(pair["key"]): _value(pair.get("value") or {}) for pair in item.get("values") or []}
        return item
    return None


def _with_event(attributes: Json, event: Json) -> Json:
    """What an event of a span says of the call: all of it, or one message more."""
    name, own = str(event.get("name", "")), _attributes(event)
    if not name.startswith("gen_ai."):
        return attributes
    if not name.endswith(".message"):
        return {**attributes, **own}
    content = unpacked(own.get("gen_ai.event.content"))
    told = content if isinstance(content, dict) else {k: v for k, v in own.items() if "." not in k}
    if isinstance(content, str):
        told = {"content": content}
    message = {"role": name.split(".")[1], **told}
    return {**attributes, "gen_ai.input.messages": [*(attributes.get("gen_ai.input.messages") or []), message]}


def _is_call(attributes: Json) -> bool:
    operation = attributes.get("gen_ai.operation.name")
    kind = attributes.get("openinference.span.kind")
    if operation in _OTHER_OPERATIONS or (kind is not None and kind != "LLM"):
        return False
    return operation is not None or kind is not None or any(key.startswith(_CALL_KEYS) for key in attributes)


def _call(file: str, line: int, span: Json, attributes: Json) -> Request:
    model = _first(attributes, "gen_ai.request.model", "llm.model_name", "gen_ai.response.model")
    body: Json = {"model": model, "messages": messages_of(attributes)}
    tools = tools_of(attributes)
    if tools:
        body["tools"] = tools
    request = Request(body, ApiShape.OPENAI_CHAT, file=file, line=line, complete=False)
    request.session = _first(
        attributes, "gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id"
    ) or span.get("traceId")
    request.provider = _first(attributes, "gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system")
    started, ended = seconds(span.get("startTimeUnixNano")), seconds(span.get("endTimeUnixNano"))
    request.timestamp = started
    if started is not None and ended is not None:
        request.latency_ms = 1000 * (ended - started)
    request.usage = _usage(attributes)
    return request


def _first(attributes: Json, *keys: str) -> Any:
    return next((attributes[key] for key in keys if attributes.get(key) is not None), None)


def _count(attributes: Json, *keys: str) -> int | None:
    found = _first(attributes, *keys)
    return None if found is None else int(found)


def _usage(attributes: Json) -> Usage | None:
    total = _count(attributes, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
    if total is None:
        return None
    cached = _count(
        attributes,
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.input_tokens.cached",
        "llm.token_count.prompt_details.cache_read",
    )
    written = _count(
        attributes,
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_creation_input_tokens",
        "llm.token_count.prompt_details.cache_write",
    )
    output = _count(
        attributes, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"
    )
    return Usage(total, cached, written, output)


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
