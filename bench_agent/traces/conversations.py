"""OpenAI-style conversations: a list of messages, ``{"messages": […], "tools": […]}``, or captured requests.

A file holds one such value, an array of them, or one a line. What has a ``request``, ``body`` (batch lines), ``params``
(Anthropic's batch lines) or ``payload``, and a bare body (it names its ``model``), is a request with its whole
conversation: those of one ``session_id`` (or ``prompt_cache_key``) make one session; without a name those do that
continue each other. Which continues which is found from their messages. OpenAI's responses are read as well
(``instructions`` and ``input``), and aiperf's lines with ``messages``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..workload.plan import Message, SessionPlan
from .lineage import Tools, WholeRequest, families, session_of, since_the_first
from .messages import answer_tokens, conversation_turns, joined_answers, messages_of, tools_of
from .rows import values
from .source import BadLines, Place, Unusable, files_of, name_of, number_of, seconds_of, tokens_of, wait_of

_NAMES = ("session_id", "prompt_cache_key", "conversation_id")
_WRAPPED = ("request", "body", "params", "payload")
_OF_A_REQUEST = ("model", "max_tokens", "max_completion_tokens", "output_length", "timestamp", "delay", "message_mode")


def sniff(first: object) -> bool:
    """Whether a first value is of this format."""
    if isinstance(first, list):
        return bool(first) and (_is_message(first[0]) or sniff(first[0]))
    if not isinstance(first, dict) or "trajectory_format" in first:
        return False
    body = _body(first)
    if isinstance(body.get("messages", body.get("conversation")), list):
        return True
    return "input" in body and isinstance(body.get("input"), str | list) and "model" in body


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """Sessions in the order in which they first appear: conversations, then captured requests."""
    sessions: list[SessionPlan] = []
    captured = _Captured()
    for file in files_of(path, (".json", ".jsonl")):
        for place, row in _conversations(file, bad):
            with bad.leaving_out(place):
                if isinstance(row, dict) and _is_request(row):
                    captured.take(row, bad.remarks)
                else:
                    sessions.append(_conversation(row, place.session_name, bad.remarks))
    return [*sessions, *captured.sessions(path.stem, bad.remarks)]


def _conversations(file: Path, bad: BadLines) -> Iterator[tuple[Place, Any]]:
    """The values of a file; an array that is no list of messages is many of them."""
    for place, value in values(file, bad):
        if not isinstance(value, list) or (value and _is_message(value[0])):
            yield place, value
            continue
        for number, entry in enumerate(value, 1):
            yield Place(place.path, place.line, number), entry


def _is_message(row: object) -> bool:
    return isinstance(row, dict) and ("role" in row or "call_id" in row)


def _body(row: dict[str, Any]) -> dict[str, Any]:
    """The body of a request: of what it is wrapped in, else the row itself."""
    return next((row[key] for key in _WRAPPED if isinstance(row.get(key), dict)), row)


def _is_request(row: dict[str, Any]) -> bool:
    """What names a model or a limit is a request; a conversation under its own name is one that was recorded whole."""
    return "conversation" not in row and any(key in row for key in (*_WRAPPED, *_OF_A_REQUEST))


def _conversation(row: Any, default_name: str, remarks: Counter[str]) -> SessionPlan:
    rows = row.get("messages", row.get("conversation")) if isinstance(row, dict) else row
    if not isinstance(rows, list) or not rows:
        raise Unusable("no list of messages")
    turns = conversation_turns([message for entry in rows for message in messages_of(entry, remarks)])
    if not turns:
        raise Unusable("no message that asks for an answer")
    name = name_of(row, (*_NAMES, "id"), default_name) if isinstance(row, dict) else default_name
    return SessionPlan(session_id=name, turns=turns, tools=_tools(row) if isinstance(row, dict) else ())


class _Captured:
    """Gathers requests by the name of their session; those without one by what they continue."""

    def __init__(self) -> None:
        self._named: dict[str, list[tuple[WholeRequest, Tools]]] = {}
        self._nameless: list[tuple[WholeRequest, Tools]] = []
        self._deltas: dict[str, tuple[Message, ...]] = {}

    def take(self, row: dict[str, Any], remarks: Counter[str]) -> None:
        """Raises Unusable."""
        body = _body(row)
        name = name_of(row, _NAMES, name_of(body, _NAMES, ""))
        request = _request(row, body, remarks)
        if row.get("message_mode") == "delta":
            request = self._after_the_last(name, request)
        (self._named.setdefault(name, []) if name else self._nameless).append((request, _tools(body)))

    def sessions(self, default_name: str, remarks: Counter[str]) -> list[SessionPlan]:
        """What was gathered."""
        found = [session_of(name, requests, remarks) for name, requests in self._named.items()]
        for number, places in enumerate(families([request for request, _ in self._nameless]), 1):
            named = f"{default_name}-{number}"
            found.append(session_of(named, [self._nameless[place] for place in places], remarks))
        return since_the_first(found)

    def _after_the_last(self, name: str, request: WholeRequest) -> WholeRequest:
        """aiperf's lines that hold what is new: the conversation so far stands before it."""
        if not name:
            raise Unusable("message_mode delta without a session_id")
        messages = (*self._deltas.get(name, ()), *request.messages)
        answered = request.answer or Message("assistant")
        self._deltas[name] = (*messages, answered)
        return WholeRequest(
            messages=messages, answer=answered, output_tokens=request.output_tokens, delay_s=request.delay_s
        )


def _request(row: dict[str, Any], body: dict[str, Any], remarks: Counter[str]) -> WholeRequest:
    response = _response(row)
    answer = _answer(response, remarks)
    started = _started(row)
    latency = wait_of(row, "latency_ms", 0.001) or 0.0
    counted = _counted(response)
    limit = tokens_of(body, "max_completion_tokens", "max_tokens", "max_output_tokens", "output_length")
    return WholeRequest(
        messages=_messages(body, remarks),
        answer=answer,
        output_tokens=counted or (None if answer else limit) or answer_tokens(answer),
        started_s=started,
        ended_s=None if started is None else started + latency,
        delay_s=wait_of(row, "delay", 0.001),
    )


def _messages(body: dict[str, Any], remarks: Counter[str]) -> tuple[Message, ...]:
    """The whole conversation of a request's body. Raises Unusable."""
    rows = body.get("messages", body.get("input"))
    if isinstance(rows, str):
        rows = [{"role": "user", "content": rows}]
    if not isinstance(rows, list) or not rows:
        raise Unusable("a request without messages")
    messages: list[Message] = []
    for system in (body.get("system"), body.get("instructions")):
        if system:
            messages += messages_of({"role": "system", "content": system}, remarks)
    for entry in rows:
        for message in messages_of(entry, remarks):
            _append(messages, message, item="role" not in entry)
    return tuple(messages)


def _append(messages: list[Message], message: Message, *, item: bool) -> None:
    """Items of the assistant that follow each other in OpenAI's responses are one answer."""
    if item and message.role == "assistant" and messages and messages[-1].role == "assistant":
        messages[-1] = joined_answers(messages[-1], message)
    else:
        messages.append(message)


def _response(row: dict[str, Any]) -> dict[str, Any]:
    """What the server answered; empty where that was not captured."""
    captured = row.get("response")
    if not isinstance(captured, dict):
        return {}
    return captured["body"] if isinstance(captured.get("body"), dict) else captured


def _answer(response: dict[str, Any], remarks: Counter[str]) -> Message | None:
    """The answer in OpenAI's (chat or responses) or Anthropic's form; None where there is none."""
    if isinstance(response.get("content"), list | str):
        return _joined(messages_of({**response, "role": "assistant"}, remarks))
    choices, items = response.get("choices"), response.get("output")
    if isinstance(choices, list) and choices and isinstance(choices[0].get("message"), dict):
        return _joined(messages_of({"role": "assistant", **choices[0]["message"]}, remarks))
    if isinstance(items, list):
        return _joined(tuple(message for item in items for message in messages_of(item, remarks)))
    return None


def _joined(messages: tuple[Message, ...]) -> Message | None:
    answer: Message | None = None
    for message in messages:
        if message.role == "assistant":
            answer = joined_answers(answer, message)
    return answer


def _counted(response: dict[str, Any]) -> int | None:
    """Tokens of the answer as the server counted them."""
    usage = response.get("usage")
    return tokens_of(usage, "completion_tokens", "output_tokens") if isinstance(usage, dict) else None


def _started(row: dict[str, Any]) -> float | None:
    """``ts`` is seconds, or ISO 8601; aiperf's ``timestamp`` is milliseconds where the row has no ``ts``."""
    for key, unit in (("ts", 1.0), ("timestamp", 1.0 if "request" in row else 0.001)):
        if key in row:
            number = number_of(row[key])
            return seconds_of(row[key]) if number is None else number * unit
    return None


def _tools(body: dict[str, Any]) -> Tools:
    found = body.get("tools")
    if isinstance(found, list) and found:
        return tools_of(found)
    old = body.get("functions")  # OpenAI's before there were tools
    return tools_of(old) if isinstance(old, list) else ()
