"""Where the versions of OTel's GenAI conventions, and those before them, put the messages of a request.

* attributes ``gen_ai.system_instructions``, ``gen_ai.input.messages``, ``gen_ai.output.messages`` (1.37 and later), as
  JSON text or as structured values; the same on an event ``gen_ai.client.inference.operation.details``;
* an event for each message, ``gen_ai.user.message``, …, ``gen_ai.choice`` (1.28 to 1.36), on the span or as log
  records;
* events ``gen_ai.content.prompt`` and ``gen_ai.content.completion`` (1.26 and 1.27);
* attributes ``gen_ai.prompt.0.role``, ``gen_ai.completion.0.content``, … (OpenLLMetry, before the conventions).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ..workload.plan import Message
from .messages import joined_answers, messages_of
from .rows import NotJson, decoded
from .source import Unusable

_INDEXED = re.compile(r"gen_ai\.(prompt|completion)\.(\d+)\.(.+)")
_CALL = re.compile(r"tool_calls\.(\d+)\.(?:function\.)?(id|name|arguments)")
_MESSAGE_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
_VALUES = ("stringValue", "doubleValue", "boolValue", "string_value", "double_value", "bool_value")


class SpanContent(msgspec.Struct, frozen=True):
    """What was asked and answered; no messages where the span does not tell."""

    messages: tuple[Message, ...]
    answer: Message | None

    @classmethod
    def read(
        cls, attributes: Mapping[str, Any], events: Iterable[tuple[str, Mapping[str, Any]]], remarks: Counter[str]
    ) -> SpanContent:
        """From the attributes and events of one span. Raises Unusable."""
        events = list(events)
        known = dict(attributes)
        for name, values in events:
            if name == "gen_ai.client.inference.operation.details":
                known |= {key: value for key, value in values.items() if key.startswith("gen_ai.")}
                known |= values["body"] if isinstance(values.get("body"), dict) else {}
            elif name in ("gen_ai.content.prompt", "gen_ai.content.completion"):
                known |= {key: value for key, value in values.items() if key in ("gen_ai.prompt", "gen_ai.completion")}
        asked = _asked(known, remarks) or _asked_by_events(events, remarks)
        return cls(asked, _answered(known, events, remarks))


def attributes_of(raw: object) -> dict[str, Any]:
    """Attributes by their keys: of an object, or of OTLP's list of keys and values."""
    if isinstance(raw, dict):
        return raw
    if not isinstance(raw, list):
        return {}
    return {str(entry.get("key")): plain(entry.get("value")) for entry in raw if isinstance(entry, dict)}


def plain(value: object) -> Any:
    """A value of OTLP's JSON as a plain one."""
    if not isinstance(value, dict):
        return value
    for key in ("intValue", "int_value"):
        if key in value:
            return int(value[key])
    for key in ("arrayValue", "array_value"):
        if isinstance(value.get(key), dict):
            return [plain(one) for one in value[key].get("values") or ()]
    for key in ("kvlistValue", "kvlist_value"):
        if isinstance(value.get(key), dict):
            return attributes_of(value[key].get("values") or [])
    if any(key in value for key in _VALUES):
        return next(value[key] for key in _VALUES if key in value)
    return value or None


def from_json(value: object) -> Any:
    """The value that a text holds as JSON; any other value as it is. Raises Unusable."""
    if not isinstance(value, str):
        return value
    try:
        return decoded(value.encode())
    except NotJson as error:
        raise Unusable(f"an attribute that should hold JSON: {error}") from None


def _asked(known: Mapping[str, Any], remarks: Counter[str]) -> tuple[Message, ...]:
    rows = from_json(known.get("gen_ai.input.messages"))
    if rows is None and isinstance(known.get("gen_ai.prompt"), str | list):
        rows = _json_or_text(known["gen_ai.prompt"])
    if rows is None:
        rows = _indexed(known, "prompt")
    if isinstance(rows, dict):
        rows = [rows]
    messages = [message for row in rows or () for message in messages_of(row, remarks)]
    system = _json_or_text(known.get("gen_ai.system_instructions"))
    if system and messages and messages[0].role != "system":
        messages[:0] = messages_of({"role": "system", "content": _system(system)}, remarks)
    return tuple(messages)


def _system(value: Any) -> Any:
    """A content as it is; of a list of messages, their contents."""
    if not isinstance(value, list):
        return value
    return [one.get("content") if isinstance(one, dict) and "role" in one else one for one in value]


def _asked_by_events(events: list[tuple[str, Mapping[str, Any]]], remarks: Counter[str]) -> tuple[Message, ...]:
    messages: list[Message] = []
    for name, values in events:
        if found := _MESSAGE_EVENT.fullmatch(name):
            body = _body(values)
            messages += messages_of({"role": found.group(1), "tool_call_id": body.get("id")} | body, remarks)
    return tuple(messages)


def _answered(
    known: Mapping[str, Any], events: list[tuple[str, Mapping[str, Any]]], remarks: Counter[str]
) -> Message | None:
    rows = from_json(known.get("gen_ai.output.messages"))
    if rows is None and isinstance(known.get("gen_ai.completion"), str | list):
        rows = _json_or_text(known["gen_ai.completion"], role="assistant")
    if rows is None and isinstance(known.get("gen_ai.output.text"), str):
        rows = [{"content": known["gen_ai.output.text"]}]
    if rows is None:
        rows = _indexed(known, "completion")
    if not rows:
        choices = [_body(values) for name, values in events if name == "gen_ai.choice"]
        rows = [choice["message"] if isinstance(choice.get("message"), dict) else choice for choice in choices[:1]]
    rows = [rows] if isinstance(rows, dict) else rows or []
    answer: Message | None = None
    for row in rows[:1]:
        found = messages_of({"role": "assistant"} | row, remarks) if isinstance(row, dict) else ()
        for message in found:
            answer = joined_answers(answer, message)
    return answer


def _json_or_text(value: object, role: str = "user") -> Any:
    """What a text holds as JSON; a text that holds none is a message's own."""
    if not isinstance(value, str):
        return value
    try:
        found = decoded(value.encode())
    except NotJson:
        found = None
    return found if isinstance(found, list | dict) else [{"role": role, "content": value}]


def _body(values: Mapping[str, Any]) -> dict[str, Any]:
    """What an event says: its body, the JSON in ``gen_ai.event.content``, else its attributes."""
    for value in (values.get("body"), from_json(values.get("gen_ai.event.content"))):
        if isinstance(value, dict):
            return value
    return {key: from_json(value) if key in ("tool_calls", "message") else value for key, value in values.items()}


def _indexed(known: Mapping[str, Any], which: str) -> list[dict[str, Any]]:
    """Messages of attributes that are numbered: ``gen_ai.prompt.0.role`` and so on."""
    found: dict[int, dict[str, Any]] = {}
    calls: dict[int, dict[int, dict[str, Any]]] = {}
    for key, value in known.items():
        place = _INDEXED.fullmatch(key)
        if place is None or place.group(1) != which:
            continue
        number, name = int(place.group(2)), place.group(3)
        row = found.setdefault(number, {"role": "assistant" if which == "completion" else "user"})
        if call := _CALL.fullmatch(name):
            calls.setdefault(number, {}).setdefault(int(call.group(1)), {})[call.group(2)] = value
        elif name == "tool_calls":
            row[name] = from_json(value)
        elif name == "content":
            row[name] = _parts_or_text(value)
        else:
            row[name] = value
    for number, several in calls.items():
        found[number]["tool_calls"] = [several[one] for one in sorted(several)]
    return [found[number] for number in sorted(found)]


def _parts_or_text(value: object) -> Any:
    """Parts that were written as JSON text are parts; any other text is text."""
    if not isinstance(value, str) or not value.startswith("[{"):
        return value
    try:
        found = decoded(value.encode())
    except NotJson:
        return value
    return found if isinstance(found, list) and all(isinstance(one, dict) and "type" in one for one in found) else value
