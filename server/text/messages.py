"""The messages of a conversation as chat templates expect them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...sessions.errors import RequestError

Message = Mapping[str, Any]
_MAX_DEPTH = 64


def prepare_messages(messages: Sequence[Message]) -> list[Message]:
    """The messages with text as their content and objects as arguments of their tool calls.

    Content given as a list of text parts becomes one text, a line for each part; no content becomes the empty text. A
    tool call's arguments arrive as JSON text and templates want the object.

    Raises:
        RequestError: a message without a role, a part that is no text, or values nested too deeply.
    """
    return [_prepared(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _prepared(message: Message, field: str) -> Message:
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise RequestError("a message has no role", field=f"{field}.role")
    _check_depth(message, field)
    prepared = {**message, "content": _content(message.get("content"), f"{field}.content")}
    calls = prepared.pop("tool_calls", None)
    if calls:
        prepared["tool_calls"] = [_call(call) for call in calls]
    return prepared


def _content(content: Any, field: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError("content is neither text nor a list of parts", field=field)
    texts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type", "text") == "text" else None
        if not isinstance(text, str):
            raise RequestError("only text can be read", field=f"{field}[{index}]", remedy="send parts of type text")
        texts.append(text)
    return "\n".join(texts)


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _check_depth(value: Any, field: str) -> None:
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        level = [inner for part in level for inner in _inner(part)]
        if not level:
            return
    raise RequestError(f"values are nested more than {_MAX_DEPTH} deep", field=field)


def _inner(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
