"""What a turn tells while it runs and at its end, and what is told of it later: plain frozen values, the same for gRPC
and HTTP."""

from __future__ import annotations

import enum

import msgspec

from ...server.engine.messages import FinishReason, TokenLogprobs, TurnUsage
from ...server.text.tool_calls import MalformedCall, ReasoningDelta, ToolCallArguments, ToolCallStarted
from ..messages import ToolCall
from .requests import ConversationEnd


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, tag="delta"):
    """New tokens and the text that became certain with them (it may lag: half a character, half a stop string)."""

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each token, when asked for


class StopCause(enum.StrEnum):
    """What exactly ended a turn."""

    END_OF_TURN = "end_of_turn"
    STOP_TOKEN = "stop_token"  # noqa: S105 - not a secret
    STOP_STRING = "stop_string"
    LENGTH = "length"
    TOOL_CALL = "tool_call"  # the first one, where only one was wanted


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """Why a turn computed tokens that it need not have computed, in words.

    ``rule``: of prompt-lint. ``first_divergent_token``: the first of the prompt's tokens that nothing computed before
    shares; None where the prompt is not what broke. ``path`` and ``char``: the place in the request. ``was`` and
    ``now``: the text there, its letters and digits blotted out unless the server is configured to show them.
    """

    rule: str
    name: str
    explanation: str
    remedy: str
    lost_tokens: int
    first_divergent_token: int | None = None
    path: str | None = None
    char: int | None = None
    was: str | None = None
    now: str | None = None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the history that a client sent.

    ``replayed_tokens``: the first tokens of the prompt, which are those of the record; only what follows was rendered.
    ``rewritten_answers``: of the latest answers among them, those that the template would have written otherwise from
    what the client sent. ``neutralised``: transport lines that were left out of the system prompt.
    """

    replayed_tokens: int = 0
    rewritten_answers: int = 0
    neutralised: tuple[str, ...] = ()


class TurnFinished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The last event of a turn; it comes after the turn is on disk.

    ``tool_calls`` are those of the answer, ``reasoning_tokens`` the sampled tokens before it. ``session_id``,
    ``version``, ``turn`` (the number of this turn, from 1) and ``num_tokens`` (of the whole log) are empty, 0, 0 and
    prompt plus answer for a turn without a session. ``replayed``: the stored answer of an earlier request with the same
    ``request_id``.
    """

    finish_reason: FinishReason
    stop_cause: StopCause
    usage: TurnUsage
    session_id: str = ""
    version: int = 0
    turn: int = 0
    num_tokens: int = 0
    tokens_committed: int = 0
    replayed: bool = False
    miss: Miss | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning_tokens: int = 0
    stop_string: str | None = None  # the one that ended the text
    conversation: ConversationEnd | None = None  # of a conversation that was brought by its client and is kept
    replay: Replay = Replay()  # of a conversation that was brought by its client


class TurnBegun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    """Told first to clients that name no session: the one that the turn belongs to (empty: none), and its prompt."""

    session_id: str
    prompt_tokens: int


class TurnSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a log. ``finished_at`` (seconds since the epoch), ``usage`` and ``finish_reason`` are None where they
    are not known, as of a turn that came with an imported file."""

    turn: int
    input_tokens: int
    output_tokens: int
    num_tokens: int
    finished_at: float | None = None
    usage: TurnUsage | None = None
    finish_reason: FinishReason | None = None
    miss: Miss | None = None


TurnDelta = TextDelta | ReasoningDelta | ToolCallStarted | ToolCallArguments | MalformedCall
"""Tokens come with text deltas alone (an empty text where they say something else). The text of a malformed call comes
in a text delta too."""

TurnEvent = TurnDelta | TurnFinished
CompletionEvent = TurnBegun | TurnEvent
