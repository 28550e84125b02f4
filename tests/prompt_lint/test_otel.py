"""OpenTelemetry in the conventions of its instrumentations, and requests under the names that loggers give them."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from sessile.prompt_lint.errors import UnusableInput
from sessile.prompt_lint.readers.detect import open_trace
from sessile.prompt_lint.request import ApiShape, Request

SYSTEM, QUESTION = {"role": "system", "content": "You help."}, {"role": "user", "content": "When?"}
TALK = [SYSTEM, QUESTION]
BODY = {"model": "m", "messages": TALK}
OWN = {
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "You help."}]),
    "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "When?"}]}]),
}
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.conversation.id": "s"}


def attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]


def span(values: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"traceId": "t", "spanId": "1", "startTimeUnixNano": "5", "attributes": attributes(values), **more}


def spans(*found: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(found)}]}]}


def read(*documents: Any) -> list[Request]:
    content = "\n".join(json.dumps(document) for document in documents).encode()
    return list(open_trace("x", io.BytesIO(content)).requests)


def numbered(prefix: str, suffix: str = "") -> dict[str, Any]:
    return {f"{prefix}{i}.{suffix}{key}": value for i, m in enumerate(TALK) for key, value in m.items()}


EVENTS = [
    {"name": f"gen_ai.{m['role']}.message", "attributes": attributes({"content": m["content"], "gen_ai.system": "x"})}
    for m in TALK
]
BODIES = [
    {"name": f"gen_ai.{m['role']}.message", "attributes": attributes({"gen_ai.event.content": json.dumps(m)})}
    for m in TALK
]
PROMPT = [{"name": "gen_ai.content.prompt", "attributes": attributes({"gen_ai.prompt": json.dumps(TALK)})}]


@pytest.mark.parametrize(
    "document",
    [
        spans(span({**CHAT, **OWN})),
        spans(
            span(CHAT, events=[{"name": "gen_ai.client.inference.operation.details", "attributes": attributes(OWN)}])
        ),
        spans(span(CHAT, events=EVENTS)),
        spans(span(CHAT, events=BODIES)),
        spans(span(CHAT, events=PROMPT)),
        spans(
            span({"gen_ai.request.model": "m", "gen_ai.conversation.id": "s", **numbered("gen_ai.prompt.")}),
            span({"gen_ai.operation.name": "execute_tool"}),
            span({"openinference.span.kind": "CHAIN", "llm.model_name": "m"}),
        ),
        spans(
            span(
                {
                    "openinference.span.kind": "LLM",
                    "llm.model_name": "m",
                    "session.id": "s",
                    **numbered("llm.input_messages.", "message."),
                }
            )
        ),
        {
            "resourceLogs": [
                {
                    "scopeLogs": [
                        {"logRecords": [span({**CHAT, **OWN}, eventName="gen_ai.client.inference.operation.details")]}
                    ]
                }
            ]
        },
    ],
    ids=["genai", "event", "old-events", "event-bodies", "prompt-event", "openllmetry", "openinference", "logs"],
)
def test_one_call_in_each_convention(document: dict[str, Any]) -> None:
    (request,) = read(document)
    assert (request.session, request.model, request.body["messages"]) == ("s", "m", TALK)


def test_log_records_of_single_messages_are_one_call() -> None:
    records = [
        {
            "spanId": "1",
            "traceId": "t",
            "timeUnixNano": "7",
            "attributes": attributes({"event.name": f"gen_ai.{m['role']}.message", "gen_ai.operation.name": "chat"}),
            "body": {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": m["content"]}}]}},
        }
        for m in TALK
    ]
    (request,) = read({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]})
    assert [m["content"] for m in request.body["messages"]] == ["You help.", "When?"]


def test_parts_and_tools_of_openinference() -> None:
    values = {
        "llm.model_name": "m",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.contents.0.message_content.type": "text",
        "llm.input_messages.0.message.contents.0.message_content.text": "When?",
        "llm.tools.0.tool.json_schema": json.dumps({"name": "look"}),
        "llm.token_count.prompt": 40,
        "llm.token_count.prompt_details.cache_read": 30,
    }
    (request,) = read(spans(span(values)))
    assert request.body["tools"] == [{"name": "look"}]
    assert "When?" in json.dumps(request.body["messages"])
    assert request.usage is not None
    assert (request.usage.prompt_tokens, request.usage.cached_tokens) == (40, 30)


def test_spans_without_content_are_never_clean() -> None:
    with pytest.raises(UnusableInput, match="CAPTURE_MESSAGE_CONTENT"):
        read(spans(span(CHAT)))
    (request,) = read(spans(span({**CHAT, "gen_ai.usage.input_tokens": 9})))
    assert request.usage is not None


@pytest.mark.parametrize(
    "record",
    [
        {"request": BODY},
        {"request": json.dumps(BODY)},
        {"request_body": BODY},
        {"payload": json.dumps(BODY), "level": "info"},
        {"params": BODY},
        {"input": BODY, "output": {"choices": []}},
        {"request": {"method": "POST", "url": "https://x/v1/chat/completions", "body": json.dumps(BODY)}},
        {"request": {"method": "post", "json_data": BODY}},
    ],
)
def test_requests_under_other_names(record: dict[str, Any]) -> None:
    answer = {"status": 200, "body": json.dumps({"usage": {"prompt_tokens": 9, "completion_tokens": 1}})}
    (request,) = read({"response": answer, "sessionId": "s", "@timestamp": "2026-11-30T06:12:01Z", **record})
    assert (request.session, request.body["messages"], request.timestamp) == ("s", TALK, 1796019121.0)
    assert request.usage is not None


def test_a_list_on_one_line_and_a_log_that_begins_with_other_lines() -> None:
    assert len(read([BODY, BODY])) == 2
    content = b"\n".join(json.dumps(d).encode() for d in ({"level": "info"}, {"level": "info"}, {"request": BODY}))
    trace = open_trace("x", io.BytesIO(content))
    assert len(list(trace.requests)) == 1
    assert [error.line for error in trace.errors.told()] == [1, 2]


def test_generate_has_a_system_text() -> None:
    (request,) = read({"model": "qwen3", "system": "You help.", "prompt": "When?", "stream": False})
    assert request.shape is ApiShape.GENERATE
