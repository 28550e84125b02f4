"""HTTP captures (HAR): the bytes as they were sent."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from ..errors import UnusableInput
from ..request import Json, Request, shape_of
from .records import Record, unpacked
from .times import seconds
from .usage import response_text, usage_of


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
    body = unpacked((sent.get("postData") or {}).get("text") or "")
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
    return unpacked(text)
