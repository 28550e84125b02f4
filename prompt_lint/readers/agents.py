"""Session files of coding agents: Claude Code and Codex."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..errors import UnusableInput
from ..request import ApiShape, Json, Request, Usage
from .records import Record
from .times import seconds
from .usage import long_lived, parsed_usage

_CLAUDE_TYPES = {
    "user",
    "assistant",
    "system",
    "summary",
    "attachment",
    "file-history-snapshot",
    "queue-operation",
    "progress",
}


def looks_like_claude_code(value: Any) -> bool:
    """A line of ~/.claude/projects/*/*.jsonl."""
    return (
        isinstance(value, dict)
        and str(value.get("type")) in _CLAUDE_TYPES
        and ("sessionId" in value or "parentUuid" in value or "leafUuid" in value)
    )


@dataclass
class _Chat:
    messages: list[Any] = field(default_factory=list)
    request_id: str | None = None


def read_claude_code(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """One request an API call: several lines with one requestId are one call, its usage counted once."""
    chats: dict[tuple[str, str], _Chat] = {}
    for record in records:
        value = record.value
        if not isinstance(value, dict) or value.get("type") is None:
            raise UnusableInput(file, "not a line of a Claude Code session (type is missing)", record.line)
        key = str(value.get("sessionId")), str(value.get("agentId") or value.get("isSidechain"))
        chat = chats.setdefault(key, _Chat())
        if value.get("subtype") == "compact_boundary":
            chats[key] = _Chat()
        elif value["type"] == "user" and isinstance(value.get("message"), dict):
            chat.messages.append(value["message"])
            chat.request_id = None
        elif value["type"] == "assistant" and isinstance(value.get("message"), dict):
            request = _claude_call(file, record, chat, key)
            if request:
                yield request


def _claude_call(file: str, record: Record, chat: _Chat, key: tuple[str, str]) -> Request | None:
    value: Json = record.value
    message: Json = value["message"]
    call = str(value.get("requestId") or message.get("id"))
    first = call != chat.request_id
    request = None
    if first:
        body = {"model": message.get("model", ""), "messages": list(chat.messages)}
        request = Request(body, ApiShape.ANTHROPIC, file=file, line=record.line, complete=False)
        request.session = key[0] if key[1] in ("False", "None") else f"{key[0]}/{key[1]}"
        request.timestamp = seconds(value.get("timestamp"))
        request.provider = "anthropic"
        request.usage = parsed_usage(message.get("usage") or {})
        if long_lived(message):
            request.notes["ttl"] = "1h"
        diagnosis = (value.get("diagnostics") or message.get("diagnostics") or {}).get("cache_miss_reason")
        if diagnosis:
            request.notes["miss"] = diagnosis
    chat.request_id = call
    content = message.get("content")
    if first:
        chat.messages.append({"role": "assistant", "content": content})
    elif isinstance(content, list) and isinstance(chat.messages[-1].get("content"), list):
        chat.messages[-1] = {"role": "assistant", "content": chat.messages[-1]["content"] + content}
    return request


def looks_like_codex(value: Any) -> bool:
    """A line of ~/.codex/sessions/**/rollout-*.jsonl."""
    return isinstance(value, dict) and isinstance(value.get("payload"), dict) and str(value.get("type")) in {
        "session_meta", "turn_context", "response_item", "event_msg", "compacted"
    }  # fmt: skip


_OUTPUTS = {"reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call"}


def read_codex(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """One request a token_count event; `total_token_usage` is cumulative and only tells repeated events apart."""
    session: str | None = None
    model, seen = "", None
    items: list[Any] = []
    for record in records:
        value = record.value
        if not looks_like_codex(value):
            raise UnusableInput(file, "not a line of a Codex session (payload is missing)", record.line)
        payload: Json = value["payload"]
        if value["type"] == "session_meta":
            session = str(payload.get("id"))
        elif value["type"] == "turn_context":
            model = str(payload.get("model", model))
        elif value["type"] == "compacted":
            items = [{"type": "message", "role": "user", "content": payload.get("message", "")}]
        elif value["type"] == "response_item":
            items.append(payload)
        elif payload.get("type") == "token_count" and isinstance(payload.get("info"), dict):
            info: Json = payload["info"]
            if info.get("total_token_usage") != seen:
                seen = info.get("total_token_usage")
                yield _codex_call(file, record, session, model, items, info.get("last_token_usage") or {})


def _codex_call(file: str, record: Record, session: str | None, model: str, items: list[Any], usage: Json) -> Request:
    end = len(items)
    while end and (str(items[end - 1].get("type")) in _OUTPUTS or items[end - 1].get("role") == "assistant"):
        end -= 1
    request = Request(
        {"model": model, "input": items[:end]}, ApiShape.RESPONSES, file=file, line=record.line, complete=False
    )
    request.session = session
    request.timestamp = seconds(record.value.get("timestamp"))
    request.provider = "openai"
    request.usage = Usage(
        int(usage.get("input_tokens") or 0),
        usage.get("cached_input_tokens"),
        usage.get("cache_write_input_tokens"),
        usage.get("output_tokens"),
    )
    return request
