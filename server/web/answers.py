"""What the server answers in OpenAI's shapes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ...sessions.manager.turn_events import Miss, Replay, TurnFinished
from ..engine.messages import MissedTokens, TokensBySource
from ..readiness import Persistence, ServerState

FinishWord = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens, those whose KV was not computed for this turn."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Of the answer's tokens, those of the reasoning before it."""

    reasoning_tokens: int


class TurnTimings(msgspec.Struct, frozen=True):
    """Seconds, on the engine's clock."""

    queue_s: float
    load_s: float
    prefill_s: float
    decode_s: float


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn cost. The parts of ``prompt_tokens_by_source`` sum to ``prompt_tokens``."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    prompt_tokens_by_source: Annotated[TokensBySource, Meta(description="Where the KV of the prompt came from.")]
    reusable_tokens: Annotated[int, Meta(description="Of the prompt's, what a cache without bounds would have had.")]
    missed: Annotated[MissedTokens, Meta(description="Why the rest of these was computed.")]
    miss: Annotated[Miss | None, Meta(description="The rule of prompt-lint that explains a miss; null for none.")]
    replay: Annotated[Replay, Meta(description="What became of the history that was sent.")]
    timings: TurnTimings


class TopLogprob(msgspec.Struct, frozen=True):
    """An alternative at one place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """One sampled token and its alternatives, likeliest first."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities of the answer's tokens."""

    content: list[TokenLogprob]
    refusal: None = None


class AnswerFunction(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A function that is called, or in a stream what a chunk adds to that; ``arguments`` is JSON as text."""

    name: str | None = None
    arguments: str


class AnswerToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in the assistant's message."""

    id: str
    type: Literal["function"] = "function"
    function: AnswerFunction


class MalformedToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the text that began like a tool call, and why it is none."""

    text: str
    reason: str


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message. ``content`` is null where it only calls tools."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[AnswerToolCall] | msgspec.UnsetType = msgspec.UNSET
    malformed_tool_calls: list[MalformedToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    index: int = 0
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishWord


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``POST /v1/chat/completions`` without stream."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class ToolCallDelta(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a chunk adds to a call: the first one has its id, its type and its name, the others more arguments."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: AnswerFunction


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    malformed_tool_calls: list[MalformedToolCall] | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk's part of the answer."""

    index: int = 0
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishWord | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One event of a streamed chat answer. ``usage`` is there with ``stream_options.include_usage`` alone."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class TextLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities in the shape of ``/v1/completions``: four lists, an item a token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, or a chunk's part of it."""

    index: int = 0
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: FinishWord | None = None


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to ``POST /v1/completions``, whole or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    aliases: list[str]
    fingerprint: str
    context_length: int
    dtype: str
    device: str


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``GET /v1/models``."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``GET /health``: the process is alive."""

    status: Literal["ok"] = "ok"
    engine: str
    version: str


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``GET /ready``: 200 when turns are taken, else 503 with the reason.

    ``persistence`` says why sessions, or their KV, are not kept on disk at the moment; empty where they are.
    """

    ready: bool
    state: ServerState
    reason: str
    persistence: Persistence


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong: ``param`` is the field, ``code`` a stable name, ``details`` what else is known."""

    message: str
    type: str
    param: str | None
    code: str
    details: dict[str, str]


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Any answer from 400 on."""

    error: ErrorDetail


def usage_of(finished: TurnFinished) -> Usage:
    """The account of a turn in OpenAI's words."""
    usage = finished.usage
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(usage.tokens_by_source.cached),
        completion_tokens_details=CompletionTokensDetails(finished.reasoning_tokens),
        prompt_tokens_by_source=usage.tokens_by_source,
        reusable_tokens=usage.reusable_tokens,
        missed=usage.missed,
        miss=finished.miss,
        replay=finished.replay,
        timings=TurnTimings(usage.queue_s, usage.load_s, usage.prefill_s, usage.decode_s),
    )
