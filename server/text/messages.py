"""The messages of a conversation as chat templates expect them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...sessions.errors import RequestError

Message = Mapping[str, Any]
MAX_DEPTH = 64  # of objects and lists in messages, tools and template arguments


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
    require_shallow(message, field)
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
    arguments = _arguments(function["arguments"])
    return call if arguments is None else {**call, "function": {**function, "arguments": arguments}}


def _arguments(text: str) -> dict[str, Any] | None:
    """The object that ``text`` is as JSON; None where a template could not write it, so that it had better see the
    text: a model may have written anything."""
    try:
        arguments = json.loads(text or "{}")
        if "\\u" in text:
            json.dumps(arguments, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) and not is_deep(arguments) else None


def require_shallow(value: object, field: str) -> None:
    """Raise RequestError if ``value`` is nested deeper than templates, JSON writers and the like can follow."""
    if is_deep(value):
        raise RequestError(f"values are nested more than {MAX_DEPTH} deep", field=field, remedy="flatten them")


def is_deep(value: object) -> bool:
    """Whether objects and lists are nested more than ``MAX_DEPTH`` deep."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for part in level for inner in _inner(part)]
        if not level:
            return False
    return True


def _inner(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
