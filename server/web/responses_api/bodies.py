"""What clients send to ``/v1/responses``, field by field; the kinds of fields are those of ``web/bodies.py``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from ..bodies import ClientName, Int, Nothing, Off
from ..grammar_fields import NoEffect

Disabled = Annotated[Any, Meta(description='Only "disabled".', extra={"only": ("disabled", None)})]


class FunctionTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tool of the client's own. Tools that OpenAI runs are refused."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: NoEffect = UNSET
    defer_loading: NoEffect = UNSET


class NamedFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer must call this tool."""

    type: Literal["function"]
    name: str


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the answer's text must look like."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the answer's text is to be."""

    format: TextFormat | None = None
    verbosity: NoEffect = UNSET


class ReasoningConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Wishes about reasoning; the model's own way is taken."""

    effort: NoEffect = UNSET
    summary: NoEffect = UNSET
    generate_summary: NoEffect = UNSET
    context: NoEffect = UNSET


class ConversationRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A conversation: a session."""

    id: str


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a stream."""

    include_obfuscation: NoEffect = UNSET


class ResponsesBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/responses``. ``input``: one text, or items."""

    input: str | list[dict[str, Any]] | None = ""
    model: Annotated[str, Meta(description="The served model's name or one of its aliases.")] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationRef | None = None
    store: bool | None = True
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    seed: Int | None = None
    max_output_tokens: Int | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = True
    text: TextConfig | None = None
    metadata: dict[str, str] | None = None
    reasoning: ReasoningConfig | None = None
    stream_options: StreamOptions | None = None
    truncation: Disabled = UNSET
    background: Off = UNSET
    prompt: Nothing = UNSET
    context_management: Nothing = UNSET
    moderation: Nothing = UNSET
    include: NoEffect = UNSET
    top_logprobs: NoEffect = UNSET
    max_tool_calls: NoEffect = UNSET
    prompt_cache_key: ClientName = None
    prompt_cache_retention: NoEffect = UNSET
    prompt_cache_options: NoEffect = UNSET
    safety_identifier: ClientName = None
    service_tier: NoEffect = UNSET
    user: ClientName = None


class ConversationBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/conversations``."""

    items: list[dict[str, Any]] | None = None
    metadata: NoEffect = UNSET


# -- items ------------------------------------------------------------------------------------------------------------


class InputPart(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a message; this server takes text. ``annotations`` and the like of its own answers may come back."""

    type: str
    text: str = ""
    refusal: str = ""


class _Item(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all items may have."""

    id: str | None = None
    status: str | None = None


class MessageItem(_Item, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="message"):
    """A message."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputPart]
    phase: str | None = None


class FunctionCallItem(_Item, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="function_call"):
    """A call that the model made."""

    call_id: str
    name: str
    arguments: str = "{}"
    namespace: str | None = None


class FunctionOutputItem(_Item, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="function_call_output"):
    """What a call gave."""

    call_id: str
    output: str | list[InputPart]


class ReasoningItem(_Item, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="reasoning"):
    """Reasoning of an earlier answer."""

    summary: list[InputPart] = []
    content: list[InputPart] | None = None
    encrypted_content: str | None = None


Item = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem
