"""What clients send to OpenAI's endpoints, field by field.

A field is one of three kinds, and each body's annotations say which:

* it has its effect here;
* it is accepted at its neutral value alone (``echo`` false), any other value is refused: ``_Only``;
* it can have no effect on the answer of this server: it is reported in the header ``x-sessile-ignored``: ``NoEffect``.

Any other field is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import UNSET, Meta

from .grammar_fields import GrammarFields, NoEffect

Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
ClientName = Annotated[
    str | None, Meta(description="Where no header names the client: of several equal conversations, its own is meant.")
]
ClientMetadata = Annotated[
    dict[str, Any] | None, Meta(description="user_id names the client; the rest has no effect here.")
]
Off = Annotated[Any, Meta(description="Only false.", extra={"only": (False, None)})]
On = Annotated[Any, Meta(description="Only true.", extra={"only": (True, None)})]
One = Annotated[Any, Meta(description="Only 1.", extra={"only": (1, None)})]
Nothing = Annotated[Any, Meta(description="Only null or empty.", extra={"only": (None, [], {}, "")})]
TextOnly = Annotated[Any, Meta(description='Only ["text"].', extra={"only": (None, ["text"])})]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``include_usage``: one more chunk at the end, without choices, that has the usage."""

    include_usage: bool | None = False
    include_obfuscation: NoEffect = UNSET
    continuous_usage_stats: NoEffect = UNSET  # vLLM's load generators send it, and read the usage at the end as well


class ContentPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a message; this server takes text. Prefixes are cached whether or not their ends are marked."""

    type: Literal["text"]
    text: str
    cache_control: NoEffect = UNSET
    prompt_cache_breakpoint: NoEffect = UNSET


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the assistant called; ``arguments`` is JSON as text."""

    name: str
    arguments: str = "{}"


class MessageToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call in an assistant's message, as the server sent it."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"
    index: NoEffect = UNSET


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of the conversation. What OpenAI's own answers carry beside the text is accepted when sent back."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    malformed_tool_calls: NoEffect = UNSET
    refusal: Nothing = UNSET
    audio: Nothing = UNSET
    annotations: Nothing = UNSET
    function_call: Nothing = UNSET


class ChosenFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a tool."""

    name: str


class NamedToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer must call this tool."""

    type: Literal["function"]
    function: ChosenFunction


class _SharedFields(GrammarFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What both endpoints have in common."""

    model: Annotated[str, Meta(description="The served model's name or one of its aliases.")] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(description="0 is greedy.")] | None = None
    top_p: float | None = None
    top_k: Annotated[Int, Meta(description="0 or left out: off.")] | None = None
    min_p: float | None = None
    seed: Int | None = None
    stop: Annotated[str | list[str] | None, Meta(description="One string or several.")] = None
    stop_token_ids: list[Int] | None = None
    max_tokens: Int | None = None
    min_tokens: Int | None = None
    ignore_eos: Annotated[bool | None, Meta(description="Go on past the model's own end of turn.")] = False
    n: Annotated[Int | None, Meta(description="How many answers to the same prompt.")] = 1
    presence_penalty: Annotated[float | None, Meta(description="-2 to 2; 0 is off.")] = None
    frequency_penalty: Annotated[float | None, Meta(description="-2 to 2; 0 is off.")] = None
    repetition_penalty: Annotated[float | None, Meta(description="1 is off.")] = None
    logit_bias: Annotated[dict[str, float] | None, Meta(description="-100 to 100, by token id.")] = None
    service_tier: Annotated[
        Literal["auto", "default", "flex", "priority", "scale"] | None,
        Meta(description="flex: a background turn; all others mean an interactive one."),
    ] = None
    priority: Annotated[
        Literal["interactive", "background", "batch"] | None,
        Meta(description="The class of the turn; it goes before service_tier."),
    ] = None
    prompt_cache_key: ClientName = None
    user: ClientName = None
    safety_identifier: ClientName = None
    metadata: ClientMetadata = None
    store: NoEffect = UNSET
    prompt_cache_retention: NoEffect = UNSET
    prompt_cache_options: NoEffect = UNSET
    cache_prompt: NoEffect = UNSET
    # vLLM's, which its clients send with what they mean there
    skip_special_tokens: On = UNSET
    spaces_between_special_tokens: On = UNSET
    include_stop_str_in_output: Off = UNSET
    use_beam_search: Off = UNSET
    length_penalty: One = UNSET
    bad_words: Nothing = UNSET
    allowed_token_ids: Nothing = UNSET
    truncate_prompt_tokens: Nothing = UNSET
    prompt_logprobs: Nothing = UNSET
    return_token_ids: Off = UNSET
    return_tokens_as_token_ids: Off = UNSET
    cache_salt: Nothing = UNSET


class ChatBody(_SharedFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/chat/completions``."""

    messages: list[ChatMessage]
    max_completion_tokens: Int | None = None
    logprobs: bool | None = False
    top_logprobs: Int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Annotated[
        Literal["auto", "none", "required"] | NamedToolChoice | None,
        Meta(description='"none": no calls are read; "required": the answer is calls. The prompt is the same.'),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="false: the turn ends behind its first tool call.")
    ] = True
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: TextOnly = UNSET
    audio: Nothing = UNSET
    functions: Nothing = UNSET
    function_call: Nothing = UNSET
    web_search_options: Nothing = UNSET
    moderation: Nothing = UNSET
    echo: Off = UNSET
    add_generation_prompt: On = UNSET
    continue_final_message: Off = UNSET
    add_special_tokens: Off = UNSET
    chat_template: Nothing = UNSET
    documents: Nothing = UNSET
    prediction: NoEffect = UNSET
    reasoning_effort: NoEffect = UNSET
    verbosity: NoEffect = UNSET


class CompletionBody(_SharedFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/completions``."""

    prompt: Annotated[
        str | list[str | Int | list[Int]], Meta(description="One text, or one list of token ids; not several.")
    ]
    logprobs: Annotated[Int, Meta(description="How many alternatives to report for each token.")] | None = None
    best_of: Annotated[Int | None, Meta(description="Only as many as ``n``.")] = None
    echo: Off = UNSET
    suffix: Nothing = UNSET
    add_special_tokens: On = UNSET


def fields_without_effect(*sent: msgspec.Struct) -> tuple[str, ...]:
    """The fields that were sent in any of these, which are of one kind, and that have no effect here."""
    names = _annotated(type(sent[0]), "effect") if sent else ()
    return tuple(name for name in names if any(getattr(one, name) is not UNSET for one in sent))


def metadata_without_effect(metadata: Mapping[str, Any] | None) -> tuple[str, ...]:
    """``metadata``, if it says more than who the client is."""
    return ("metadata",) if metadata and set(metadata) != {"user_id"} else ()


def first_refused_value(body: msgspec.Struct) -> tuple[str, object, tuple[Any, ...]] | None:
    """The first field that was sent with another than its neutral value: its name, its value, what it may be."""
    for name, allowed in _annotated(type(body), "only").items():
        value = getattr(body, name)
        if value is not UNSET and value not in allowed:
            return name, value, allowed
    return None


@cache
def _annotated(kind: type[msgspec.Struct], key: str) -> Mapping[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: meta.extra[key]
        for name, hint in hints.items()
        for meta in getattr(hint, "__metadata__", ())
        if isinstance(meta, Meta) and meta.extra and key in meta.extra
    }
