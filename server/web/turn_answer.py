"""The answer of one turn as an ASGI response: streamed as server-sent events, or whole.

While the turn runs the connection is watched: a client that goes away ends its turn at once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Generic, TypeVar

from starlette.types import Receive, Scope, Send

from ...sessions.errors import EngineError, SessileError
from ...sessions.manager.turn_events import CompletionEvent, TextDelta, TurnBegun, TurnDelta, TurnEvent, TurnFinished
from .connection import while_connected
from .event_stream import EVENT_STREAM, EventStream
from .metrics import TurnMeter
from .watched import LastingAnswer
from .writers import TurnWriter

SESSION_HEADER = "x-sessile-session"
_Event = TypeVar("_Event")


class TurnAnswer(LastingAnswer, Generic[_Event]):
    """What all answers have in common. ``events`` is run, and closed, by this response.

    ``ping_s``: after how many seconds without an event a streamed one pings.
    """

    def __init__(
        self, events: AsyncIterator[_Event], meter: TurnMeter, headers: Mapping[str, str], ping_s: float
    ) -> None:
        super().__init__(headers)
        self._events = events
        self._meter = meter
        self._ping_s = ping_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. Raises SessileError before anything was sent, for the application's handlers to answer."""
        await while_connected(self._work(send), receive, lambda: self._meter.ended("client_gone"))

    async def _work(self, send: Send) -> None:
        try:
            await self._answer(self._events, send)
        except SessileError as error:
            self._meter.failed(error)
            raise
        finally:
            if isinstance(self._events, AsyncGenerator):
                await self._events.aclose()
            self._meter.ended("cancelled")

    async def _answer(self, events: AsyncIterator[_Event], send: Send) -> None:
        raise NotImplementedError

    def _count(self, delta: TurnDelta) -> None:
        if isinstance(delta, TextDelta):
            self._meter.tokens(len(delta.token_ids))

    async def _send_whole(self, send: Send, body: bytes) -> None:
        """An answer that is complete: it says how long it is, as clients of HTTP/1.0 need it."""
        self.headers["content-length"] = str(len(body))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


class _OneTurn(TurnAnswer[CompletionEvent]):
    """The answer of one turn, which ``writer`` writes."""

    def __init__(
        self,
        events: AsyncIterator[CompletionEvent],
        writer: TurnWriter,
        meter: TurnMeter,
        headers: Mapping[str, str],
        ping_s: float,
    ) -> None:
        super().__init__(events, meter, headers, ping_s)
        self._writer = writer

    async def _begun(self, events: AsyncIterator[CompletionEvent]) -> TurnEvent | None:
        """Hear of the turn's session. An event that is about the answer already is returned."""
        event = await anext(events)
        if not isinstance(event, TurnBegun):
            return event
        if event.session_id:
            self.headers[SESSION_HEADER] = event.session_id
        self._writer.begun(event)
        return None


class StreamedTurn(_OneTurn):
    """Server-sent events, with a ping after ``ping_s`` seconds without any.

    An error before the first of them has its own status, a later one is an event.
    """

    media_type = EVENT_STREAM

    async def _answer(self, events: AsyncIterator[CompletionEvent], send: Send) -> None:
        event = await self._begun(events)
        stream = EventStream(send, self.raw_headers, self._writer.ping, self._ping_s)
        async with stream.kept_alive():
            await stream.write(await self._written(event, events, stream), last=True)

    async def _written(
        self, event: TurnEvent | None, events: AsyncIterator[CompletionEvent], stream: EventStream
    ) -> bytes:
        """Write all but the last piece, which is returned. Raises SessileError before the answer has begun."""
        opening = self._writer.opening()
        try:
            event = event or await _next(events)
            await stream.start()
            while not isinstance(event, TurnFinished):
                self._count(event)
                piece = opening + self._writer.delta(event)
                if piece:
                    await stream.write(piece)
                    opening = b""
                event = await _next(events)
            refuse_aborted(event)
            self._meter.finished(event)
            return opening + self._writer.ended(event) + self._writer.done(event)
        except SessileError as error:
            if not stream.started:
                raise
            self._meter.failed(error)
            return opening + self._writer.failed(error)


class WholeTurn(_OneTurn):
    """One JSON object, when the turn is over."""

    media_type = "application/json"

    async def _answer(self, events: AsyncIterator[CompletionEvent], send: Send) -> None:
        deltas: list[TurnDelta] = []
        event = await self._begun(events) or await _next(events)
        while not isinstance(event, TurnFinished):
            self._count(event)
            deltas.append(event)
            event = await _next(events)
        refuse_aborted(event)
        self._meter.finished(event)
        await self._send_whole(send, self._writer.answer(deltas, event))


async def _next(events: AsyncIterator[CompletionEvent]) -> TurnEvent:
    event = await anext(events)
    assert not isinstance(event, TurnBegun)
    return event


def refuse_aborted(finished: TurnFinished) -> None:
    """Raise EngineError for a turn that was ended before its time."""
    if finished.finish_reason == "aborted":
        raise EngineError("the server ended the turn before it was complete", remedy="send it again")
