"""From a turn's events to a response, streamed or whole, and to what is kept of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ....sessions.errors import SessileError
from ....sessions.manager.turn_events import TurnBegun, TurnDelta, TurnFinished
from ...engine.messages import FinishReason
from ..errors import http_status_of
from ..event_stream import COMMENT
from .answers import ConversationId, IncompleteDetails, ResponseError, ResponseObject, usage_of
from .output import Event, ResponseOutput

_encode = msgspec.json.Encoder().encode


class ResponseWriter:
    """One response. ``head`` is what is known of it before it begins.

    ``heard`` takes each event before it is written, so that the response is complete before anybody is told so.
    """

    ping = COMMENT

    def __init__(self, head: ResponseObject) -> None:
        self._head = head
        self._output = ResponseOutput()
        self._events: list[Event] = []
        self._sequence = 0
        self.response = head

    def heard(self, event: TurnDelta | TurnFinished) -> None:
        """Take a delta or the end of the turn."""
        if not isinstance(event, TurnFinished):
            self._events += self._output.take(event)
            return
        cut = event.finish_reason is FinishReason.LENGTH
        self._events += self._output.close("incomplete" if cut else "completed")
        self.response = msgspec.structs.replace(
            self._head,
            status="incomplete" if cut else "completed",
            completed_at=int(time.time()),
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if cut else None,
            output=self._output.items,
            store=event.conversation is not None,
            usage=usage_of(event),
            malformed_tool_calls=self._output.malformed or msgspec.UNSET,
        )

    def begun(self, begun: TurnBegun) -> None:
        if self._head.conversation is not None and begun.session_id:
            self._head = msgspec.structs.replace(self._head, conversation=ConversationId(begun.session_id))

    def opening(self) -> bytes:
        return self._told([{"type": kind, "response": self._head} for kind in _BEGINNING])

    def delta(self, delta: TurnDelta) -> bytes:
        return self._heard_events()

    def ended(self, finished: TurnFinished) -> bytes:
        last = f"response.{self.response.status}"
        return self._heard_events() + self._told([{"type": last, "response": self.response}])

    def done(self, finished: TurnFinished) -> bytes:
        return b""

    def failed(self, error: SessileError) -> bytes:
        _, code = http_status_of(error)
        failed = msgspec.structs.replace(
            self._head,
            status="failed",
            error=ResponseError(code=code, message=str(error)),
            output=self._output.items,
        )
        return self._heard_events() + self._told([{"type": "response.failed", "response": failed}])

    def answer(self, deltas: Sequence[TurnDelta], finished: TurnFinished) -> bytes:
        return _encode(self.response)

    def _heard_events(self) -> bytes:
        events, self._events = self._events, []
        return self._told(events)

    def _told(self, events: Sequence[dict[str, Any]]) -> bytes:
        told = []
        for event in events:
            numbered = {"type": event["type"], "sequence_number": self._sequence, **event}
            self._sequence += 1
            told.append(b"event: " + event["type"].encode() + b"\ndata: " + _encode(numbered) + b"\n\n")
        return b"".join(told)


_BEGINNING = ("response.created", "response.in_progress")
