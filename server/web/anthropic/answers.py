"""What the server answers in Anthropic's shapes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ....sessions.manager.turn_events import Miss, Replay, TurnFinished
from ...engine.messages import MissedTokens, TokensBySource
from ..answers import TurnTimings
from .bodies import CacheControl

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class CacheCreation(msgspec.Struct, frozen=True, kw_only=True):
    """Of the tokens that were computed and are kept, how many for which time."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Of the answer's tokens, those of the reasoning before it."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn cost: ``input_tokens`` + ``cache_read_input_tokens`` + ``cache_creation_input_tokens`` is its prompt.

    Read: not computed for this turn. Creation: computed, and kept as ``cache_control`` asked. Input: computed.
    """

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheCreation
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    service_tier: Literal["standard"] = "standard"
    prompt_tokens_by_source: TokensBySource | msgspec.UnsetType = msgspec.UNSET
    reusable_tokens: int | msgspec.UnsetType = msgspec.UNSET
    missed: MissedTokens | msgspec.UnsetType = msgspec.UNSET
    miss: Miss | msgspec.UnsetType | None = msgspec.UNSET
    replay: Replay | msgspec.UnsetType = msgspec.UNSET
    timings: TurnTimings | msgspec.UnsetType = msgspec.UNSET


class CacheMissReason(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of the request broke the prefix, and what that cost. ``unavailable``: none did; the KV was gone."""

    type: Literal["model_changed", "system_changed", "tools_changed", "messages_changed", "unavailable"]
    cache_missed_input_tokens: int


class Diagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """Why the prompt's cached prefix was not reused; the rule and the place are in ``usage.miss``."""

    cache_miss_reason: CacheMissReason


class AnswerText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Text of the answer."""

    text: str


class AnswerThinking(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """Reasoning before the answer."""

    thinking: str
    signature: str


class AnswerToolUse(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """A call, its arguments as the model wrote them."""

    id: str
    name: str
    input: msgspec.Raw


class MalformedToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the text that began like a call, and why it is none."""

    text: str
    reason: str


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``POST /v1/messages``."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerText | AnswerThinking | AnswerToolUse]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    malformed_tool_uses: list[MalformedToolUse] | msgspec.UnsetType = msgspec.UNSET
    diagnostics: Diagnostics | msgspec.UnsetType = msgspec.UNSET


class MessageError(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong. ``param``, ``code`` and ``details`` are as in OpenAI's shape."""

    type: str
    message: str
    param: str | None
    code: str
    details: dict[str, str]


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of a streamed answer, with the fields that Anthropic's event of that ``type`` has."""

    type: Literal[
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    ]
    message: MessageAnswer | None = None
    index: int | None = None
    content_block: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    usage: MessageUsage | None = None
    diagnostics: Diagnostics | msgspec.UnsetType = msgspec.UNSET
    error: MessageError | None = None


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``POST /v1/messages/count_tokens``."""

    input_tokens: int


class MessageErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Any answer from 400 on."""

    type: Literal["error"] = "error"
    error: MessageError
    request_id: str


def usage_before(prompt_tokens: int) -> MessageUsage:
    """What is known when an answer begins; the end says where the prompt came from."""
    return MessageUsage(
        input_tokens=prompt_tokens,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=0,
        cache_creation=CacheCreation(),
        output_tokens=0,
        output_tokens_details=OutputTokensDetails(thinking_tokens=0),
    )


def usage_of(finished: TurnFinished, kept: CacheControl | None) -> MessageUsage:
    """The account of a turn whose prompt was to be kept like this."""
    usage = finished.usage
    read = usage.tokens_by_source.cached
    created = usage.prompt_tokens - read if kept is not None else 0
    hour = created if kept is not None and kept.ttl == "1h" else 0
    return MessageUsage(
        input_tokens=usage.prompt_tokens - read - created,
        cache_creation_input_tokens=created,
        cache_read_input_tokens=read,
        cache_creation=CacheCreation(ephemeral_5m_input_tokens=created - hour, ephemeral_1h_input_tokens=hour),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(thinking_tokens=finished.reasoning_tokens),
        prompt_tokens_by_source=usage.tokens_by_source,
        reusable_tokens=usage.reusable_tokens,
        missed=usage.missed,
        miss=finished.miss,
        replay=finished.replay,
        timings=TurnTimings(usage.queue_s, usage.load_s, usage.prefill_s, usage.decode_s),
    )


def diagnostics_of(miss: Miss | None) -> Diagnostics | msgspec.UnsetType:
    """A miss in Anthropic's words; left out where there was none."""
    if miss is None:
        return msgspec.UNSET
    return Diagnostics(
        cache_miss_reason=CacheMissReason(type=_changed(miss), cache_missed_input_tokens=miss.lost_tokens)
    )


def _changed(
    miss: Miss,
) -> Literal["model_changed", "system_changed", "tools_changed", "messages_changed", "unavailable"]:
    if miss.rule == "PL504":
        return "model_changed"
    if miss.path is None:
        return "unavailable"
    if miss.path.startswith("tools"):
        return "tools_changed"
    return "system_changed" if miss.path.startswith("system") else "messages_changed"
