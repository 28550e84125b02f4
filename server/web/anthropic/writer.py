"""From a turn's events to Anthropic's answers, streamed or whole."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ....sessions.errors import SessileError
from ....sessions.manager.turn_events import StopCause, TextDelta, TurnBegun, TurnDelta, TurnFinished
from ...engine.messages import FinishReason
from ...text.tool_calls import MalformedCall, ReasoningDelta, ToolCallArguments, ToolCallStarted
from .answers import (
    AnswerText,
    AnswerThinking,
    AnswerToolUse,
    MalformedToolUse,
    MessageAnswer,
    StopReason,
    diagnostics_of,
    usage_before,
    usage_of,
)
from .bodies import CacheControl
from .errors import error_body

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class MessageHead:
    """What is known of an answer before it begins."""

    id: str
    model: str
    fingerprint: str
    shows_thinking: bool
    cache_control: CacheControl | None
    request_id: str

    @classmethod
    def new(
        cls, model: str, fingerprint: str, *, shows_thinking: bool, cache_control: CacheControl | None, request_id: str
    ) -> MessageHead:
        """The head of a new answer."""
        return cls(f"msg_{uuid.uuid4().hex}", model, fingerprint, shows_thinking, cache_control, request_id)


class MessageWriter:
    """One answer. Its content is blocks: thinking, text, and one for each tool call, in the order of their coming."""

    def __init__(self, head: MessageHead) -> None:
        self._head = head
        self._prompt_tokens = 0
        self._block = -1  # the last one that was opened
        self._open: str | None = None  # its type, while it is open
        self._thought: list[str] = []
        self._pinged = False
        self._malformed: list[MalformedCall] = []

    @property
    def ping(self) -> bytes:
        return _event("ping")

    def begun(self, begun: TurnBegun) -> None:
        self._prompt_tokens = begun.prompt_tokens

    def opening(self) -> bytes:
        message = MessageAnswer(
            id=self._head.id,
            model=self._head.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=usage_before(self._prompt_tokens),
        )
        return _event("message_start", message=message)

    def delta(self, delta: TurnDelta) -> bytes:
        match delta:
            case TextDelta(text=text):
                if not text:
                    return b""
                return self._in("text", {"type": "text", "text": ""}) + self._add({"type": "text_delta", "text": text})
            case ReasoningDelta(text=text):
                return self._thinking(text) if self._head.shows_thinking else b""
            case ToolCallStarted(id=call_id, name=name):
                return self._start("tool_use", {"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case ToolCallArguments(fragment=fragment):
                return self._add({"type": "input_json_delta", "partial_json": fragment})
            case MalformedCall():
                self._malformed.append(delta)  # its text is text; told at the end
                return b""

    def ended(self, finished: TurnFinished) -> bytes:
        reason, sequence = stop_reason(finished)
        end = self._stop()
        notes = {"malformed_tool_uses": _notes(self._malformed)} if self._malformed else {}
        end += _event(
            "message_delta",
            delta={"stop_reason": reason, "stop_sequence": sequence},
            usage=usage_of(finished, self._head.cache_control),
            **({"diagnostics": diagnostics_of(finished.miss)} if finished.miss is not None else {}),
            **notes,
        )
        return end + _event("message_stop")

    def done(self, finished: TurnFinished) -> bytes:
        return b""

    def failed(self, error: SessileError) -> bytes:
        return b"event: error\ndata: " + _encode(error_body(error, self._head.request_id)) + b"\n\n"

    def answer(self, deltas: Sequence[TurnDelta], finished: TurnFinished) -> bytes:
        reason, sequence = stop_reason(finished)
        malformed = [delta for delta in deltas if isinstance(delta, MalformedCall)]
        return _encode(
            MessageAnswer(
                id=self._head.id,
                model=self._head.model,
                content=self._content(deltas, finished),
                stop_reason=reason,
                stop_sequence=sequence,
                usage=usage_of(finished, self._head.cache_control),
                malformed_tool_uses=_notes(malformed) or msgspec.UNSET,
                diagnostics=diagnostics_of(finished.miss),
            )
        )

    def _content(
        self, deltas: Sequence[TurnDelta], finished: TurnFinished
    ) -> list[AnswerThinking | AnswerText | AnswerToolUse]:
        thought = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
        text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        content: list[AnswerThinking | AnswerText | AnswerToolUse] = []
        if thought and self._head.shows_thinking:
            content.append(AnswerThinking(thinking=thought, signature=self._signature(thought)))
        if text:
            content.append(AnswerText(text=text))
        calls = [
            AnswerToolUse(id=call.id, name=call.name, input=msgspec.Raw(call.arguments.encode()))
            for call in finished.tool_calls
        ]
        return [*content, *calls]

    def _thinking(self, text: str) -> bytes:
        opened = self._in("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        self._thought.append(text)
        return opened + self._add({"type": "thinking_delta", "thinking": text})

    def _in(self, kind: str, block: dict[str, Any]) -> bytes:
        """Make sure that a block of this kind is open."""
        return b"" if self._open == kind else self._start(kind, block)

    def _start(self, kind: str, block: dict[str, Any]) -> bytes:
        before = self._stop()
        self._open = kind
        self._block += 1
        started = before + _event("content_block_start", index=self._block, content_block=block)
        if not self._pinged:
            self._pinged = True
            started += self.ping
        return started

    def _add(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._block, delta=delta)

    def _stop(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            signature = self._signature("".join(self._thought))
            signed = self._add({"type": "signature_delta", "signature": signature})
            self._thought.clear()
        self._open = None
        return signed + _event("content_block_stop", index=self._block)

    def _signature(self, thought: str) -> str:
        """Names the reasoning; clients send it back, and nothing depends on it."""
        digest = hashlib.blake2b(thought.encode(), key=self._head.fingerprint.encode()[:64], digest_size=32).digest()
        return base64.b64encode(digest).decode()


def stop_reason(finished: TurnFinished) -> tuple[StopReason, str | None]:
    """Anthropic's word for a turn's end, and the stop sequence that ended it."""
    if finished.finish_reason is FinishReason.TOOL_CALLS:
        return "tool_use", None
    if finished.finish_reason is FinishReason.LENGTH:
        return "max_tokens", None
    if finished.stop_cause is StopCause.STOP_STRING:
        return "stop_sequence", finished.stop_string
    return "end_turn", None


def _notes(malformed: Sequence[MalformedCall]) -> list[MalformedToolUse]:
    return [MalformedToolUse(text=call.text, reason=call.reason) for call in malformed]


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + _encode({"type": kind, **fields}) + b"\n\n"
