"""Sessions that nobody uses for a while, and what is then done with them."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from ..background import keep_doing
from ..errors import SessileError
from .ports import SteadyClock

logger = logging.getLogger(__name__)

MAX_AT_ONCE = 4  # sessions taken care of together


class IdleSessions:
    """Calls ``idle`` once for each session that was left and did not come back in time. For one event loop.

    The clock is asked, never slept by: ``attend`` does what is due now. ``run`` attends from time to time.
    """

    def __init__(self, clock: SteadyClock, idle: Callable[[str], Awaitable[None]]) -> None:
        self._clock = clock
        self._idle = idle
        self._due: list[tuple[float, str]] = []  # a heap; what is not in _until as well was called off
        self._until: dict[str, float] = {}
        self._running: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Sessions that were left and are not idle yet."""
        return len(self._until)

    def left(self, session_id: str, idle_s: float) -> None:
        """The session's turn is over; it is idle ``idle_s`` seconds from now."""
        due = self._clock() + idle_s
        self._until[session_id] = due
        heapq.heappush(self._due, (due, session_id))
        if len(self._due) > 2 * len(self._until) + 100:
            self._due = [(due, session_id) for session_id, due in self._until.items()]
            heapq.heapify(self._due)

    def came_back(self, session_id: str) -> None:
        """The session is used, or over."""
        self._until.pop(session_id, None)

    async def attend(self) -> None:
        """Take care of all that are idle by now."""
        limit = asyncio.Semaphore(MAX_AT_ONCE)

        async def attend_to(session_id: str) -> None:
            async with limit:
                try:
                    await self._idle(session_id)
                except SessileError as error:
                    logger.warning("an idle session was not persisted: %s", error, extra={"session_id": session_id})

        await asyncio.gather(*(attend_to(session_id) for session_id in self._take_due()))

    def start(self, every_s: float) -> None:
        """Attend every so many seconds from now on, until ``aclose``."""
        self._running = asyncio.get_running_loop().create_task(
            keep_doing("idle sessions are not persisted", partial(self._run, every_s))
        )

    async def aclose(self) -> None:
        """Attend no more."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    def _take_due(self) -> list[str]:
        now, taken = self._clock(), []
        while self._due and self._due[0][0] <= now:
            due, session_id = heapq.heappop(self._due)
            if self._until.get(session_id) == due:
                del self._until[session_id]
                taken.append(session_id)
        return taken

    async def _run(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self.attend()
