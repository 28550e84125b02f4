"""What clients send to ``/v1/messages``, field by field; the kinds of fields are those of ``web/bodies.py``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from ..bodies import ClientMetadata, Int, Nothing
from ..grammar_fields import NoEffect


class CacheControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keep the conversation's KV for so long."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class TextBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text", kw_only=True):
    """Text."""

    text: str
    cache_control: CacheControl | None = None
    citations: Nothing = UNSET


class ThinkingBlock(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="thinking", kw_only=True
):
    """Reasoning of an earlier answer. The session has it in tokens already; the signature is not checked."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="redacted_thinking", kw_only=True
):
    """Reasoning that only Anthropic can read."""

    data: str


class ToolUseBlock(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_use", kw_only=True
):
    """A call in an assistant's message, as the server sent it."""

    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: NoEffect = UNSET
    toolset_name: NoEffect = UNSET


class ImageBlock(msgspec.Struct, frozen=True, tag_field="type", tag="image", kw_only=True):
    """An image: refused, with the place where it stands."""


class DocumentBlock(msgspec.Struct, frozen=True, tag_field="type", tag="document", kw_only=True):
    """A document: refused, with the place where it stands."""


class ToolResultBlock(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_result", kw_only=True
):
    """What a tool said."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = False
    toolset_name: NoEffect = UNSET
    cache_control: CacheControl | None = None


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock | ImageBlock | DocumentBlock


class InputMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class ToolParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tool of the client's own. Tools that Anthropic runs or defines are refused."""

    name: str
    input_schema: dict[str, Any] | msgspec.UnsetType = UNSET
    description: str | None = None
    type: str | None = "custom"
    cache_control: CacheControl | None = None
    strict: NoEffect = UNSET
    eager_input_streaming: NoEffect = UNSET
    input_examples: NoEffect = UNSET
    allowed_callers: NoEffect = UNSET
    defer_loading: NoEffect = UNSET


class ToolChoiceParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``tool`` names one; ``any``: one of them."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = False


class ThinkingParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whether the model's reasoning is asked for, and shown."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: NoEffect = UNSET
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A schema that the answer's text must match."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the answer is to be."""

    format: OutputFormat | None = None
    effort: NoEffect = UNSET


class _Conversation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is counted by ``count_tokens`` and answered by ``messages``."""

    messages: list[InputMessage]
    model: Annotated[str, Meta(description="The served model's name or one of its aliases.")] | None = None
    system: str | list[TextBlock] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: CacheControl | None = None
    mcp_servers: Nothing = UNSET
    context_management: NoEffect = UNSET
    speed: NoEffect = UNSET
    user_profile_id: NoEffect = UNSET
    workspace_id: NoEffect = UNSET


class CountTokensBody(_Conversation, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/messages/count_tokens``."""


class MessagesBody(_Conversation, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/messages``."""

    max_tokens: Int
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    stop_sequences: list[str] | None = None
    container: Nothing = UNSET
    metadata: ClientMetadata = None
    service_tier: NoEffect = UNSET
    inference_geo: NoEffect = UNSET
    diagnostics: NoEffect = UNSET
