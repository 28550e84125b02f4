"""Bare request bodies, request and response pairs, batch files, rendered prompts, and single responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import UnusableInput
from ..request import ApiShape, Json, Request, shape_of
from .records import Record, unpacked
from .times import seconds
from .usage import long_lived, response_text, usage_of

_HOLDERS = (
    "request",
    "request_body",
    "requestBody",
    "body",
    "payload",
    "input",
    "params",
    "json_data",
    "kwargs",
    "data",
)
_ANSWERS = ("response", "response_body", "responseBody", "output", "result", "completion")
_SESSIONS = ("session_id", "session", "sessionId", "conversation_id", "conversationId", "thread_id")
_TIMES = ("timestamp", "ts", "time", "@timestamp", "created_at", "start_time")


def looks_like_request(value: Any) -> bool:
    """A body, or a body with what was recorded around it."""
    return isinstance(value, dict) and (held_body(value) is not None or shape_of(value) is not None)


def held_body(value: Json) -> Json | None:
    """The body of a request that stands in a record under one of the usual names, as JSON or as a text of JSON."""
    return next((body for key in _HOLDERS if (body := _body_in(value.get(key))) is not None), None)


def _body_in(held: Any) -> Json | None:
    """The value itself, or what an HTTP request holds."""
    found = _object_in(held)
    if not isinstance(found, dict):
        return None
    inner = next(
        (body for key in ("body", "json_data", "json") if isinstance(body := _object_in(found.get(key)), dict)), {}
    )
    return next((body for body in (found, inner) if shape_of(body) is not None), None)


def _object_in(value: Any) -> Any:
    """What a text holds that is a JSON object; another text may be an answer as it was written."""
    return unpacked(value) if isinstance(value, str) and value.lstrip()[:1] == "{" else value


def _answer_of(value: Json) -> Any:
    """The response that was recorded with a request, or what an HTTP response holds."""
    found = next((_object_in(value[key]) for key in _ANSWERS if value.get(key) is not None), None)
    inner = _object_in(found.get("body")) if isinstance(found, dict) else None
    return inner if isinstance(inner, dict) else found


def read_requests(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """Bodies, bare or wrapped, one a record."""
    for record in records:
        value = record.value
        if not isinstance(value, dict):
            raise UnusableInput(file, f"a request was expected, found {type(value).__name__}", record.line)
        body = value["request"] if isinstance(value.get("request"), dict) else None
        body = held_body(value) or body
        yield _bare(file, record) if body is None else _wrapped(file, record, body)


def request_from(file: str, line: int, body: Any) -> Request:
    """A request of a body. Raises: UnusableInput when it is no request body."""
    shape = shape_of(body) if isinstance(body, dict) else None
    if shape is None:
        keys = ", ".join(list(body)[:6]) if isinstance(body, dict) else type(body).__name__
        raise UnusableInput(file, f"not a request body (found: {keys})", line)
    return Request(body, shape, file=file, line=line)


def _bare(file: str, record: Record) -> Request:
    value: Json = record.value
    if isinstance(value.get("input"), str) and "output" in value and "model" not in value:
        return _rendered(file, record)
    request = request_from(file, record.line, value)
    request.response_token_ids = value.get("response_token_ids")
    request.session = _text(value.get("session_id"))
    request.timestamp = seconds(value.get("timestamp"))
    return request


def _rendered(file: str, record: Record) -> Request:
    """`{"timestamp", "input", "output", "session_id"}`: whole rendered prompts."""
    value: Json = record.value
    request = Request({"prompt": value["input"]}, ApiShape.TEXT, file=file, line=record.line)
    request.session = _text(value.get("session_id"))
    request.timestamp = seconds(value.get("timestamp"))
    request.response_text = _text(value.get("output"))
    return request


def _wrapped(file: str, record: Record, body: Json) -> Request:
    value: Json = record.value
    request = request_from(file, record.line, body)
    return dressed(request, value, _answer_of(value))


def dressed(request: Request, around: Json, response: Any) -> Request:
    """Take over what was recorded around a body."""
    request.session = _text(next((around[key] for key in _SESSIONS if around.get(key)), None))
    request.timestamp = next((time for key in _TIMES if (time := seconds(around.get(key))) is not None), None)
    request.purpose = _text(around.get("purpose"))
    request.provider = _text(around.get("provider"))
    request.replica = _text(around.get("replica") or around.get("worker") or around.get("server"))
    request.ttft_ms = _number(around.get("ttft_ms"))
    request.latency_ms = _number(around.get("latency_ms"))
    request.usage = usage_of(response) or usage_of(around)
    request.response_text = response_text(response)
    ids = around.get("response_token_ids") or request.body.get("response_token_ids")
    request.response_token_ids = ids if isinstance(ids, list) else None
    request.complete = not (request.body.get("previous_response_id") or request.body.get("conversation"))
    if long_lived(response):
        request.notes["ttl"] = "1h"
    if around.get("evicted"):
        request.notes["evicted"] = True
    return request


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def looks_like_batch(value: Any) -> bool:
    """A line of a batch file of either provider, input or result."""
    return (
        isinstance(value, dict)
        and "custom_id" in value
        and any(k in value for k in ("body", "params", "response", "result"))
    )


def read_batch(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """Batch files: each line is a session of its own, for the order of the file is not that of the run."""
    for record in records:
        value = record.value
        if not looks_like_batch(value):
            raise UnusableInput(file, "not a line of a batch file (custom_id is missing)", record.line)
        body = value.get("body") or value.get("params")
        if body is not None:
            request = request_from(file, record.line, body)
        else:
            request = answer_only(file, record.line, _batch_answer(value))
        request.session = _text(value["custom_id"])
        request.purpose = "batch"
        yield request


def _batch_answer(value: Json) -> Any:
    response = value.get("response")
    if isinstance(response, dict):
        return response.get("body")
    result = value.get("result")
    return result.get("message") if isinstance(result, dict) else None


def looks_like_answer(value: Any) -> bool:
    """A response body without its request."""
    return isinstance(value, dict) and usage_of(value) is not None


def answer_only(file: str, line: int, body: Any) -> Request:
    """A request of which only the response is known: it has counts and no prompt."""
    request = Request({"prompt": ""}, ApiShape.TEXT, file=file, line=line, complete=False)
    request.usage = usage_of(body)
    request.response_text = response_text(body)
    if isinstance(body, dict):
        request.body["model"] = body.get("model", "")
        timings = body.get("timings")
        if isinstance(timings, dict):
            request.ttft_ms = _number(timings.get("prompt_ms"))
            request.provider = "llama-server"
    return request


def read_answers(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """Response bodies."""
    for record in records:
        if not looks_like_answer(record.value):
            raise UnusableInput(file, "no usage in this response", record.line)
        yield answer_only(file, record.line, record.value)
