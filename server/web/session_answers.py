"""What ``/v1/sessions`` answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ...sessions.manager.events import SessionEvent
from ...sessions.manager.requests import SessionView
from ...sessions.manager.turn_events import StopCause, TextDelta, TurnDelta, TurnEvent, TurnFinished, TurnSummary
from ...sessions.messages import ToolCall
from ..engine.messages import FinishReason, TokenLogprobs, TurnUsage
from ..text.tool_calls import MalformedCall, ReasoningDelta


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of open sessions, oldest first, without system prompts and tools. ``next_page_token`` is empty on the last
    page."""

    object: Literal["list"] = "list"
    data: tuple[SessionView, ...]
    next_page_token: str


class TurnList(msgspec.Struct, frozen=True, kw_only=True):
    """The finished turns of a session, oldest first."""

    object: Literal["list"] = "list"
    data: tuple[TurnSummary, ...]


class TurnAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole turn. It is on disk. ``replayed``: the stored answer of an earlier request with the same id."""

    session_id: str
    version: int
    turn: int
    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    malformed_calls: tuple[MalformedCall, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason
    stop_cause: StopCause
    usage: TurnUsage
    num_tokens: int
    tokens_committed: int
    replayed: bool


class TurnStreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed turn: the event's name is its ``type``. The last is ``finished``, or ``error``."""

    event: Annotated[TurnEvent, Meta(description="The JSON object that stands in the event's data.")]


class WatchStreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a watch: the event's name is the ``type`` of ``what``."""

    event: Annotated[SessionEvent, Meta(description="The JSON object that stands in the event's data.")]


def whole_turn(deltas: Sequence[TurnDelta], finished: TurnFinished) -> TurnAnswer:
    """All of a turn in one."""
    texts = [delta for delta in deltas if isinstance(delta, TextDelta)]
    return TurnAnswer(
        session_id=finished.session_id,
        version=finished.version,
        turn=finished.turn,
        text="".join(delta.text for delta in texts),
        reasoning="".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
        tool_calls=finished.tool_calls,
        malformed_calls=tuple(delta for delta in deltas if isinstance(delta, MalformedCall)),
        token_ids=tuple(token_id for delta in texts for token_id in delta.token_ids),
        logprobs=tuple(logprobs for delta in texts for logprobs in delta.logprobs),
        finish_reason=finished.finish_reason,
        stop_cause=finished.stop_cause,
        usage=finished.usage,
        num_tokens=finished.num_tokens,
        tokens_committed=finished.tokens_committed,
        replayed=finished.replayed,
    )
