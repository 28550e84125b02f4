"""The words of a conversation: messages and tool calls, as agents write them and as the session log keeps them."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

Tool = dict[str, Any]
"""One tool in OpenAI's shape: ``{"type": "function", "function": {"name", "description", "parameters"}}``.

Kept as it came, with the order of its keys, since templates print it and one changed byte is another prompt.
"""


class Role(enum.StrEnum):
    """Who says a message."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the assistant made. ``arguments`` is a JSON object as text, exactly as it was written."""

    id: str
    name: str
    arguments: str = "{}"


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message. ``tool_call_id`` and ``name`` belong to a tool's result, ``reasoning`` to an assistant's."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
