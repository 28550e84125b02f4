"""Workloads written as OTLP JSON: one span a request, with its whole conversation, as the GenAI conventions say."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..workload.plan import Message, SessionPlan, Turn, Workload, whole_conversations
from ..workload.text import BlockTexts
from .rendering import new_messages, starts_of

_ANSWER_S = 0.001  # how long a span is: what starts while it lasts overlaps it


def write_otel(workload: Workload, path: Path) -> None:
    """One document of all spans."""
    spans = []
    texts = BlockTexts()
    for number, session in enumerate(workload.sessions):
        starts = starts_of(session, _ANSWER_S)
        trace = _digest(f"{number}/{session.session_id}", 32)
        for index, (turn, messages) in enumerate(whole_conversations(session)):
            span = _span(session, turn, messages or new_messages(turn, texts))
            spans.append(_placed(span, trace, _digest(f"{trace}/{index}", 16), starts[index]))
    scope = {"scope": {"name": "bench-agent"}, "spans": spans}
    resource = {"attributes": [_attribute("service.name", "bench-agent")]}
    path.write_bytes(msgspec.json.encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}))


def _span(session: SessionPlan, turn: Turn, messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    attributes = [
        _attribute("gen_ai.operation.name", "chat"),
        _attribute("gen_ai.conversation.id", session.session_id),
        _attribute("gen_ai.input.messages", _otel_messages(messages)),
    ]
    if turn.agent != "main":
        attributes.append(_attribute("gen_ai.agent.name", turn.agent))
    if turn.recorded is not None:
        attributes.append(_attribute("gen_ai.output.messages", _otel_messages((turn.recorded,))))
    if session.tools:
        attributes.append(_attribute("gen_ai.tool.definitions", msgspec.json.encode(session.tools).decode()))
    if turn.output_tokens:
        attributes.append({"key": "gen_ai.usage.output_tokens", "value": {"intValue": str(turn.output_tokens)}})
    return attributes


def _placed(attributes: list[dict[str, Any]], trace: str, span: str, start: float) -> dict[str, Any]:
    return {
        "traceId": trace,
        "spanId": span,
        "name": "chat model",
        "kind": 3,
        "startTimeUnixNano": str(round(start * 1e9)),
        "endTimeUnixNano": str(round((start + _ANSWER_S) * 1e9)),
        "attributes": attributes,
    }


def _otel_messages(messages: Iterable[Message]) -> str:
    rows = []
    for message in messages:
        parts: list[dict[str, Any]] = []
        if message.role == "tool":
            parts.append({"type": "tool_call_response", "id": message.tool_call_id, "response": message.content})
        elif message.content:
            parts.append({"type": "text", "content": message.content})
        parts += [
            {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
            for call in message.tool_calls
        ]
        rows.append({"role": message.role, "parts": parts} | ({"name": message.name} if message.name else {}))
    return msgspec.json.encode(rows).decode()


def _attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
