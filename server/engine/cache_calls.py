"""The front's side of the questions to the engine's cache: who waits for which answer, and who hears of events."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from ...sessions.errors import CapacityError, EngineError, RequestError, SessileError
from .cache_messages import (
    CacheAnswer,
    CacheCall,
    CacheEvents,
    CacheRequest,
    CacheResponse,
    CallError,
    CallFailed,
)

Answer = TypeVar("Answer")

MAX_UNREAD = 256  # batches of events that a listener may be behind
_ERRORS: dict[CallError, type[SessileError]] = {
    CallError.REQUEST: RequestError,
    CallError.CAPACITY: CapacityError,
    CallError.ENGINE: EngineError,
}


class CacheCalls:
    """Alone owns the calls that wait and the listeners. One asyncio loop uses it."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[CacheResponse]] = {}
        self._listeners: set[asyncio.Queue[CacheEvents | None]] = set()  # None: the end
        self._closed = False

    async def call(self, send: Callable[[CacheCall], None], request: CacheRequest, expected: type[Answer]) -> Answer:
        """Send ``request`` and wait for its answer.

        Raises:
            SessileError: what the engine answered instead, or that it died meanwhile.
        """
        call_id = next(self._ids)
        future = self._waiting[call_id] = asyncio.get_running_loop().create_future()
        try:
            send(CacheCall(call_id, request))
            response = await future
        finally:
            self._waiting.pop(call_id, None)
        if isinstance(response, CallFailed):
            raise _ERRORS[response.kind](response.message, field=response.field, remedy=response.remedy)
        if not isinstance(response, expected):
            raise EngineError(f"the engine answered {type(request).__name__} with {type(response).__name__}")
        return response

    def answered(self, answer: CacheAnswer) -> None:
        """An answer came. Whoever asked may have gone."""
        future = self._waiting.get(answer.call_id)
        if future is not None and not future.done():
            future.set_result(answer.response)

    async def events(self) -> AsyncGenerator[CacheEvents, None]:
        """What happens in the cache from now on, until ``close``. A listener that does not keep up loses the oldest,
        and is told how many."""
        if self._closed:
            return
        queue: asyncio.Queue[CacheEvents | None] = asyncio.Queue(MAX_UNREAD)
        self._listeners.add(queue)
        try:
            while (events := await queue.get()) is not None:
                yield events
        finally:
            self._listeners.discard(queue)

    def happened(self, events: CacheEvents) -> None:
        """Pass ``events`` on to all listeners."""
        for queue in self._listeners:
            _put(queue, events)

    def fail(self, error: EngineError) -> None:
        """The engine is gone: nobody will answer. Listeners go on with the next engine."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EngineError(error.message, remedy=error.remedy, retry_after_s=error.retry_after_s))

    def close(self, error: EngineError) -> None:
        """There will be no other engine: calls get ``error``, and there is nothing more to listen to."""
        self.fail(error)
        self._closed = True
        for queue in self._listeners:
            _put(queue, None)


def _put(queue: asyncio.Queue[CacheEvents | None], item: CacheEvents | None) -> None:
    """Add ``item`` to a bounded queue; the oldest makes room, and is counted in the next."""
    if queue.full():
        oldest = queue.get_nowait()
        if oldest is not None and item is not None:
            item = CacheEvents(events=item.events, num_lost=item.num_lost + oldest.num_lost + len(oldest.events))
    queue.put_nowait(item)
