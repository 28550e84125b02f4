"""OpenAI-style conversations: a list of messages, ``{"messages": […], "tools": […]}``, or captured requests.

A file holds one such value, an array of them, or one a line. ``{"request": {…}, "response": {…}}`` and batch lines
(``{"custom_id", "body": {…}}``) are requests with their whole conversation: those of one ``session_id`` (or
``prompt_cache_key``) make one session, and which continues which is found from their messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..workload.plan import Message, SessionPlan
from .lineage import WholeRequest, turns_of
from .messages import conversation_turns, message_of, tools_of
from .source import (
    BadLines,
    Unusable,
    files_of,
    first_object,
    json_document,
    json_lines,
    number_of,
)


def sniff(first: object) -> bool:
    """Whether a first object is of this format."""
    if isinstance(first, list):
        return bool(first) and (_is_message(first[0]) or sniff(first[0]))
    if not isinstance(first, dict):
        return False
    body = first.get("request", first.get("body", first))
    return isinstance(body, dict) and isinstance(body.get("messages"), list) and "trajectory_format" not in first


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """Sessions in the order in which they first appear."""
    sessions: list[SessionPlan] = []
    captured: dict[str, list[tuple[WholeRequest, tuple[dict[str, object], ...]]]] = {}
    for file in files_of(path, (".json", ".jsonl")):
        for number, row in _rows(file, bad):
            with bad.leaving_out(file, number):
                if isinstance(row, dict) and ("request" in row or "body" in row):
                    name, request, tools = _captured(row, f"{file.stem}-{number}")
                    captured.setdefault(name, []).append((request, tools))
                else:
                    sessions.append(_conversation(row, f"{file.stem}-{number}"))
    for name, found in captured.items():
        requests = [request for request, _ in found]
        sessions.append(SessionPlan(session_id=name, turns=turns_of(requests), tools=found[0][1]))
    return sessions


def _rows(file: Path, bad: BadLines) -> Iterator[tuple[int, Any]]:
    if file.suffix == ".jsonl":
        head = first_object(file)
        if not isinstance(head, list):
            yield from json_lines(file, bad)
            return
        for number, raw in enumerate(file.read_bytes().splitlines(), 1):
            yield from _list_line(file, number, raw, bad)
        return
    document = json_document(file)
    single = not isinstance(document, list) or (bool(document) and _is_message(document[0]))
    yield from enumerate([document] if single else document, 1)


def _list_line(file: Path, number: int, raw: bytes, bad: BadLines) -> Iterator[tuple[int, Any]]:
    if not raw.strip():
        return
    try:
        yield number, msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        bad.found(file, number, f"not JSON: {error}")


def _is_message(row: object) -> bool:
    return isinstance(row, dict) and "role" in row


def _conversation(row: Any, default_name: str) -> SessionPlan:
    rows = row.get("messages") if isinstance(row, dict) else row
    if not isinstance(rows, list) or not rows:
        raise Unusable("no list of messages")
    turns = conversation_turns([message_of(message) for message in rows])
    if not turns:
        raise Unusable("no message that asks for an answer")
    name = row.get("session_id", row.get("id", default_name)) if isinstance(row, dict) else default_name
    return SessionPlan(
        session_id=str(name), turns=turns, tools=tools_of(row.get("tools") if isinstance(row, dict) else None)
    )


def _captured(row: dict[str, Any], default_name: str) -> tuple[str, WholeRequest, tuple[dict[str, object], ...]]:
    body = row.get("request", row.get("body"))
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise Unusable("a request without messages")
    messages = tuple(message_of(message) for message in body["messages"])
    if isinstance(body.get("system"), str):
        messages = (Message("system", body["system"]), *messages)
    answer = _answer(row.get("response"))
    started = number_of(row.get("ts", row.get("timestamp")))
    latency = (number_of(row.get("latency_ms")) or 0.0) / 1000
    name = row.get("session_id") or body.get("prompt_cache_key") or default_name
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    request = WholeRequest(
        messages=messages,
        answer=answer,
        output_tokens=limit if answer is None and isinstance(limit, int) else None,
        started_s=started,
        ended_s=None if started is None else started + latency,
    )
    return str(name), request, tools_of(body.get("tools"))


def _answer(captured: object) -> Message | None:
    if not isinstance(captured, dict):
        return None
    response: dict[str, Any] = captured.get("body", captured)
    if isinstance(response.get("content"), list):
        return message_of(response | {"role": "assistant"})
    choices = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0].get("message"), dict):
        return message_of(choices[0]["message"])
    return None
