"""A request in one form, whatever file or provider it came from."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


class ApiShape(enum.Enum):
    """The dialect of a request body."""

    OPENAI_CHAT = "openai-chat"
    RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    CONVERSE = "bedrock-converse"
    GENERATE = "ollama-generate"
    TEXT = "text"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request in one convention: `prompt_tokens` includes the cached part."""

    prompt_tokens: int
    cached_tokens: int | None = None
    written_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(slots=True)
class Request:
    """One request as recorded. `index` counts requests of the input from 0; `timestamp` is in seconds.

    `rendered_token_ids`: what the model was given, where a server that knows it tells.
    """

    body: Json
    shape: ApiShape
    index: int = 0
    file: str = "-"
    line: int | None = None
    session: str | None = None
    timestamp: float | None = None
    purpose: str | None = None
    provider: str | None = None
    usage: Usage | None = None
    response_text: str | None = None
    response_token_ids: Sequence[int] | None = None
    rendered_token_ids: Sequence[int] | None = None
    ttft_ms: float | None = None
    latency_ms: float | None = None
    replica: str | None = None
    complete: bool = True
    notes: Json = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The model's name, or an empty string."""
        return str(self.body.get("model") or self.body.get("modelId") or "")


def shape_of(body: Json) -> ApiShape | None:
    """Tell a body's dialect from its keys; None when it is no request body."""
    if isinstance(body.get("prompt_token_ids"), list) or isinstance(body.get("input_ids"), list):
        return ApiShape.TOKENS
    if "contents" in body and isinstance(body["contents"], list):
        return ApiShape.GEMINI
    if isinstance(body.get("messages"), list):
        return _messages_shape(body)
    if "input" in body and (isinstance(body["input"], list) or "instructions" in body):
        return ApiShape.RESPONSES
    if isinstance(body.get("prompt"), str):
        return ApiShape.GENERATE if isinstance(body.get("system"), str) else ApiShape.TEXT
    if isinstance(body.get("input"), str):
        return ApiShape.RESPONSES if "model" in body else ApiShape.TEXT
    return None


def _messages_shape(body: Json) -> ApiShape:
    if "toolConfig" in body or "inferenceConfig" in body or _has_converse_parts(body):
        return ApiShape.CONVERSE
    if "system" in body or "anthropic_version" in body or _is_anthropic(body):
        return ApiShape.ANTHROPIC
    return ApiShape.OPENAI_CHAT


def _has_converse_parts(body: Json) -> bool:
    """Converse parts carry no `type`: {"text": …}, {"toolUse": …}."""
    for message in body["messages"][:4]:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and content and isinstance(content[0], dict):
            return "type" not in content[0] and bool(
                content[0].keys() & {"text", "toolUse", "toolResult", "cachePoint"}
            )
    return False


_ANTHROPIC_PARTS = ("tool_use", "tool_result", "thinking", "redacted_thinking")


def _is_anthropic(body: Json) -> bool:
    if any(isinstance(m, dict) and m.get("role") in ("system", "developer", "tool") for m in body["messages"]):
        return False
    tools = body.get("tools")
    if isinstance(tools, list) and tools and isinstance(tools[0], dict) and "input_schema" in tools[0]:
        return True
    if str(body.get("model", "")).startswith("claude"):
        return True
    return any(
        isinstance(part, dict) and part.get("type") in _ANTHROPIC_PARTS
        for message in body["messages"]
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        for part in message["content"]
    )
