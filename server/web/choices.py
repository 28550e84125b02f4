"""Several answers to one prompt (``n``): turns of their own that share the prompt's KV, in one ASGI response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

import msgspec
from starlette.types import Send

from ...sessions.errors import SessileError
from ...sessions.manager.turn_events import CompletionEvent, TurnBegun, TurnDelta, TurnEvent, TurnFinished
from ..tasks import end
from .event_stream import EVENT_STREAM, EventStream
from .metrics import TurnMeter
from .turn_answer import TurnAnswer, refuse_aborted
from .writers import ChoiceWriter

_AHEAD = 256  # events that may wait for a slow client, of all turns together

Numbered = tuple[int, TurnEvent]
"""An event, and which of the turns it is of."""


async def merged(turns: Sequence[AsyncIterator[CompletionEvent]]) -> AsyncGenerator[Numbered, None]:
    """The events of ``turns`` as they come. The first error of one ends all; so does closing this."""
    events: asyncio.Queue[Numbered | Exception | None] = asyncio.Queue(_AHEAD)
    readers = [asyncio.ensure_future(_read(number, turn, events)) for number, turn in enumerate(turns)]
    try:
        left = len(readers)
        while left:
            event = await events.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                left -= 1
            else:
                yield event
    finally:
        for reader in readers:
            reader.cancel()
        for reader in readers:
            await end(reader)


async def _read(
    number: int, turn: AsyncIterator[CompletionEvent], events: asyncio.Queue[Numbered | Exception | None]
) -> None:
    try:
        async for event in turn:
            if not isinstance(event, TurnBegun):  # each choice is a conversation of its own
                await events.put((number, event))
    except Exception as error:  # noqa: BLE001 - raised where the events are read
        await events.put(error)
    finally:
        if isinstance(turn, AsyncGenerator):
            await turn.aclose()
    await events.put(None)


class _ChoicesAnswer(TurnAnswer[Numbered]):
    """What streamed and whole answers have in common. ``writers``: one a choice."""

    def __init__(
        self,
        events: AsyncIterator[Numbered],
        writers: Sequence[ChoiceWriter],
        meter: TurnMeter,
        headers: Mapping[str, str],
        ping_s: float,
    ) -> None:
        super().__init__(events, meter, headers, ping_s)
        self._writers = writers
        self._finished: dict[int, TurnFinished] = {}

    def _take(self, number: int, event: TurnEvent) -> TurnDelta | None:
        """The event, unless it is the end of its turn."""
        if isinstance(event, TurnFinished):
            refuse_aborted(event)
            self._finished[number] = event
            return None
        if number == 0:
            self._count(event)
        return event

    def _all_finished(self) -> TurnFinished:
        """The end of all turns: the prompt counts once, what was sampled is summed."""
        first, every = self._finished[0], list(self._finished.values())
        self._meter.finished(first)
        usage = msgspec.structs.replace(
            first.usage,
            completion_tokens=sum(each.usage.completion_tokens for each in every),
            drafted_tokens=sum(each.usage.drafted_tokens for each in every),
            accepted_tokens=sum(each.usage.accepted_tokens for each in every),
            preemptions=sum(each.usage.preemptions for each in every),
            decode_s=max(each.usage.decode_s for each in every),
        )
        return msgspec.structs.replace(
            first, usage=usage, reasoning_tokens=sum(each.reasoning_tokens for each in every)
        )


class StreamedChoices(_ChoicesAnswer):
    """Server-sent events of all choices as they come, each with its index; pings as of one."""

    media_type = EVENT_STREAM

    async def _answer(self, events: AsyncIterator[Numbered], send: Send) -> None:
        stream = EventStream(send, self.raw_headers, self._writers[0].ping, self._ping_s)
        async with stream.kept_alive():
            await stream.write(await self._written(events, stream), last=True)

    async def _written(self, events: AsyncIterator[Numbered], stream: EventStream) -> bytes:
        """Write all but the last piece, which is returned. Raises SessileError before the answer has begun."""
        openings = {index: writer.opening() for index, writer in enumerate(self._writers)}
        try:
            while len(self._finished) < len(self._writers):
                number, event = await anext(events)
                if not stream.started:
                    await stream.start()
                delta = self._take(number, event)
                writer = self._writers[number]
                piece = writer.ended(self._finished[number]) if delta is None else writer.delta(delta)
                if piece:
                    await stream.write(openings.pop(number, b"") + piece)
            return self._writers[0].done(self._all_finished())
        except SessileError as error:
            if not stream.started:
                raise
            self._meter.failed(error)
            return self._writers[0].failed(error)


class WholeChoices(_ChoicesAnswer):
    """One JSON object, when all turns are over."""

    media_type = "application/json"

    async def _answer(self, events: AsyncIterator[Numbered], send: Send) -> None:
        deltas: list[list[TurnDelta]] = [[] for _ in self._writers]
        async for number, event in events:
            delta = self._take(number, event)
            if delta is not None:
                deltas[number].append(delta)
        choices = [writer.choice(deltas[index], self._finished[index]) for index, writer in enumerate(self._writers)]
        await self._send_whole(send, self._writers[0].whole(choices, self._all_finished()))
