"""How long a call waits for its client: for the messages of a request, and until an answer is read.

gRPC itself waits for ever for a client whose connection lives. A write that waits for its reader cannot be taken
back, nor can the call be ended before it: what is ended after the time is what the answer comes from, with its turn,
its watch or its file. The client is told when it reads on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Generic, TypeVar

import grpc.aio

from ...sessions.errors import DeadlineExceeded

logger = logging.getLogger(__name__)

_Item = TypeVar("_Item")
Context = grpc.aio.ServicerContext[Any, Any]
EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in its stubs


async def next_message(context: Context, within_s: float) -> Any:
    """The next message of the request; None at its end.

    Raises:
        DeadlineExceeded: none came, or not all of it, within so many seconds.
    """
    try:
        async with asyncio.timeout(within_s):
            message = await context.read()
    except TimeoutError:
        raise DeadlineExceeded(
            f"no message came for {within_s:g} s", remedy="send each message at once, and end the request"
        ) from None
    return None if message is EOF else message


async def send_all(
    context: Context, items: AsyncGenerator[_Item, None], write: Callable[[_Item], Any], within_s: float
) -> None:
    """Send what ``items`` gives, each through ``write``, and close it at the end, or when the call is cancelled.

    Raises:
        DeadlineExceeded: the client did not read for so many seconds. ``items`` was closed then, this is raised when
            the client reads on; if it goes away instead, the call is cancelled.
    """
    answer = _Answer(items, within_s)
    async with aclosing(items):
        async for item in items:
            await answer.read(context.write(write(item)))


class _Answer(Generic[_Item]):
    """Closes ``items`` while a write waits too long."""

    def __init__(self, items: AsyncGenerator[_Item, None], within_s: float) -> None:
        self._items = items
        self._within_s = within_s
        self._closing: asyncio.Task[None] | None = None

    async def read(self, writing: Any) -> None:
        """Await a write. Raises DeadlineExceeded if it was given up meanwhile."""
        waiting = asyncio.get_running_loop().call_later(self._within_s, self._give_up)
        try:
            await writing
        finally:
            waiting.cancel()
            if self._closing is not None:
                await self._closing
        if self._closing is not None:
            raise DeadlineExceeded(
                f"the answer was not read for {self._within_s:g} s and was given up",
                remedy="read answers as they come",
            )

    def _give_up(self) -> None:
        logger.info("an answer is given up: its client has not read for %g s", self._within_s)
        self._closing = asyncio.ensure_future(self._items.aclose())
