"""What the server answers in the shapes of the Responses API."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ....sessions.manager.turn_events import Miss, Replay, TurnFinished
from ...engine.messages import MissedTokens, TokensBySource
from ..answers import MalformedToolCall, TurnTimings

Status = Literal["in_progress", "completed", "incomplete", "failed"]
OutputItem = dict[str, Any]


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Of the prompt's tokens: not computed for this turn, and computed and kept."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Of the answer's tokens, those of the reasoning before it."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn cost. The parts of ``prompt_tokens_by_source`` sum to ``input_tokens``."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    prompt_tokens_by_source: TokensBySource
    reusable_tokens: int
    missed: MissedTokens
    miss: Miss | None
    timings: TurnTimings
    replay: Replay = Replay()


class ResponseError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ConversationId(msgspec.Struct, frozen=True):
    """The conversation that a response belongs to."""

    id: str


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response. ``output``: items of type ``reasoning``, ``message`` and ``function_call``."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    conversation: ConversationId | None = None
    store: bool = True
    temperature: float | None = None
    text: dict[str, Any]
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]]
    top_p: float | None = None
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    metadata: dict[str, str] = {}
    malformed_tool_calls: list[MalformedToolCall] | msgspec.UnsetType = msgspec.UNSET


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of a stream, with the fields that OpenAI's event of that ``type`` has."""

    type: str
    sequence_number: int
    response: ResponseObject | None = None
    output_index: int | None = None
    content_index: int | None = None
    item_id: str | None = None
    item: OutputItem | None = None
    part: dict[str, Any] | None = None
    delta: str | None = None
    text: str | None = None
    name: str | None = None
    arguments: str | None = None
    logprobs: list[Any] | None = None


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``DELETE /v1/responses/{id}``."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputItems(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``GET /v1/responses/{id}/input_items``."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``POST /v1/responses/input_tokens``."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ConversationObject(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation: the session of this id."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str] = {}


class DeletedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``DELETE /v1/conversations/{id}``."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


def usage_of(finished: TurnFinished) -> ResponseUsage:
    """The account of a turn."""
    usage = finished.usage
    cached = usage.tokens_by_source.cached
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=cached, cache_write_tokens=usage.prompt_tokens - cached),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=finished.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_by_source=usage.tokens_by_source,
        reusable_tokens=usage.reusable_tokens,
        missed=usage.missed,
        miss=finished.miss,
        replay=finished.replay,
        timings=TurnTimings(usage.queue_s, usage.load_s, usage.prefill_s, usage.decode_s),
    )
