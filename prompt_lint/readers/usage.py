"""Token counts of the providers in one convention."""

from __future__ import annotations

from typing import Any

from ..request import Json, Usage
from .records import unpacked


def _int(value: Any) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _sum(*values: Any) -> int:
    return sum(_int(v) or 0 for v in values)


def usage_of(body: Any) -> Usage | None:
    """The usage in a response body of any known dialect, or None."""
    if isinstance(body, str):
        return usage_of_stream(body)
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("usageMetadata"), dict):
        return _gemini(body["usageMetadata"])
    timings = body.get("timings")
    usage = body.get("usage")
    if not isinstance(usage, dict) and isinstance(body.get("message"), dict):
        usage = body["message"].get("usage")
    if isinstance(usage, dict):
        return parsed_usage(usage)
    if isinstance(timings, dict) and "cache_n" in timings:
        cached = _int(timings.get("cache_n")) or 0
        return Usage(cached + (_int(timings.get("prompt_n")) or 0), cached, None, _int(timings.get("predicted_n")))
    return None


def parsed_usage(usage: Json) -> Usage | None:
    """One usage object."""
    if "prompt_tokens" in usage:
        return _openai_chat(usage)
    if "inputTokens" in usage:
        read, written = usage.get("cacheReadInputTokens"), usage.get("cacheWriteInputTokens")
        total = _sum(usage["inputTokens"], read, written)
        return Usage(total, _int(read), _int(written), _int(usage.get("outputTokens")))
    if "input_tokens" not in usage:
        return None
    if isinstance(usage.get("input_tokens_details"), dict):
        details = usage["input_tokens_details"]
        written = _int(details.get("cache_write_tokens"))
        return Usage(
            _sum(usage["input_tokens"]), _int(details.get("cached_tokens")), written, _int(usage.get("output_tokens"))
        )
    read, written = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
    return Usage(
        _sum(usage["input_tokens"], read, written), _int(read), _int(written), _int(usage.get("output_tokens"))
    )


def _openai_chat(usage: Json) -> Usage:
    details = usage.get("prompt_tokens_details")
    cached = _int(details.get("cached_tokens")) if isinstance(details, dict) else None
    if cached is None:
        cached = _int(usage.get("cache_read_input_tokens", usage.get("prompt_cache_hit_tokens")))
    written = _int(usage.get("cache_creation_input_tokens"))
    if written is None and isinstance(details, dict):
        written = _int(details.get("cache_write_tokens"))
    return Usage(_sum(usage["prompt_tokens"]), cached, written, _int(usage.get("completion_tokens")))


def _gemini(usage: Json) -> Usage:
    cached = _int(usage.get("cachedContentTokenCount"))
    return Usage(_sum(usage.get("promptTokenCount")), cached, None, _int(usage.get("candidatesTokenCount")))


def usage_of_stream(text: str) -> Usage | None:
    """Usage in a stream of server-sent events: from `message_start`, or from the last chunk that has one."""
    found: Usage | None = None
    for line in text.splitlines():
        if not line.startswith("data:") or line.strip() == "data: [DONE]":
            continue
        event = unpacked(line[5:])
        if not isinstance(event, dict):
            continue
        body = event.get("response") if isinstance(event.get("response"), dict) else event
        if event.get("type") == "message_delta" and found is not None:
            continue
        found = usage_of(body) or found
    return found


def long_lived(body: Any) -> bool:
    """True when an Anthropic usage says that it wrote entries of one hour."""
    usage = body.get("usage") if isinstance(body, dict) else None
    creation = usage.get("cache_creation") if isinstance(usage, dict) else None
    return isinstance(creation, dict) and bool(creation.get("ephemeral_1h_input_tokens"))


def response_text(body: Any) -> str | None:
    """The generated text, where the response is nothing but text."""
    if isinstance(body, str):
        return body if not body.startswith(("data:", "event:")) else None
    if not isinstance(body, dict):
        return None
    choices = body.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        if isinstance(choices[0].get("text"), str):
            return str(choices[0]["text"])
        message = choices[0].get("message")
        if isinstance(message, dict) and isinstance(message.get("content"), str) and not message.get("tool_calls"):
            return None if message.get("reasoning_content") else str(message["content"])
    return None
