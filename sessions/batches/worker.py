"""Runs batches: one after the other for each tenant, the tenants beside each other, line by line.

What a line gave is on disk before it counts. A process that was killed goes on with the lines that have no result.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Protocol

import msgspec

from ..errors import CapacityError, Draining, EngineError, SessileError, StoreError
from ..store.threads import in_thread
from .answers import error_line, response_line
from .batch import Batch, BatchStatus, BatchUsage, LineResult
from .failures import InputLost, InputUnreadable
from .lines import BatchInput, BatchLine
from .store import BatchStore

logger = logging.getLogger(__name__)

LATER = (CapacityError, Draining, EngineError, StoreError)  # not the line's fault: it is run again
_RETRY_S = 1.0
_STORE_RETRY_S = 5.0
_AT_ONCE = 200  # results of lines that never ran, in one write
Clock = Callable[[], float]


class LineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the endpoint answered: an HTTP status, the id of the request, and a JSON body."""

    status: int
    request_id: str
    body: bytes
    usage: BatchUsage = BatchUsage()


class RunLine(Protocol):
    """Runs one request as a turn of the lowest priority. Closing or cancelling it ends the turn.

    Raises CapacityError, Draining, EngineError and StoreError: not the request's fault. What is, is an answer.
    """

    async def __call__(self, tenant: str, endpoint: str, body: bytes) -> LineAnswer: ...


OpenInput = Callable[[Batch], Awaitable[BatchInput]]


class BatchWorker:
    """``concurrency`` lines run at once. Tenants take turns for these places, whatever the sizes of their batches.

    A store that fails is waited for. An input that is lost is not: its batch fails, and so does one whose window closes
    while its input cannot be read.
    """

    def __init__(
        self,
        store: BatchStore,
        run_line: RunLine,
        open_input: OpenInput,
        clock: Clock,
        *,
        concurrency: int,
        max_lines: int,
    ) -> None:
        self._store = store
        self._run_line = run_line
        self._open_input = open_input
        self._clock = clock
        self._concurrency = concurrency
        self._max_lines = max_lines
        self._places = asyncio.Semaphore(concurrency)
        self._lanes: dict[str, _Lane] = {}
        self._stalled: set[str] = set()
        self.num_running = 0
        self.num_retries = 0  # since the start

    @property
    def num_stalled(self) -> int:
        """Tenants whose batches stand still, because of an error that the log tells."""
        return len(self._stalled)

    def has_work(self, tenant: str) -> None:
        """Say that a tenant has a batch that is not over, or that was cancelled."""
        lane = self._lanes.get(tenant)
        if lane is None:
            lane = self._lanes[tenant] = _Lane()
            lane.task = asyncio.ensure_future(self._run_lane(tenant, lane))
            lane.task.add_done_callback(lambda task: self._lane_ended(tenant, task))
        lane.news.set()  # seen by the lane, or by who takes its place

    async def aclose(self) -> None:
        """End all turns. What has ended is on disk; the rest is run after the next start."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _lane_ended(self, tenant: str, task: asyncio.Future[None]) -> None:
        lane = self._lanes.pop(tenant)
        self._stalled.discard(tenant)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stalled.add(tenant)
            logger.error("batches of a tenant stand still until its next one comes", exc_info=error)
        elif not task.cancelled() and lane.news.is_set():  # said when it had just ended
            self.has_work(tenant)

    async def _run_lane(self, tenant: str, lane: _Lane) -> None:
        """All batches of a tenant, the oldest first."""
        while True:
            lane.news.clear()
            try:
                batch = await self._store.unfinished(tenant)
                if batch is not None:
                    await self._step(batch, lane.news)
                elif not lane.news.is_set():
                    return
                self._stalled.discard(tenant)
            except* StoreError as errors:
                self._stalled.add(tenant)
                logger.error("batches of a tenant wait: %s", errors.exceptions[0])
                await asyncio.sleep(_STORE_RETRY_S)

    async def _step(self, batch: Batch, news: asyncio.Event) -> None:
        """``_advance``, or the end of a batch whose input is not waited for any longer."""
        try:
            await self._advance(batch, news)
        except* InputUnreadable as errors:
            if errors.subgroup(InputLost) is None and self._clock() < batch.expires_at:
                raise
            error = _first(errors)
            logger.error("batch %s fails: %s", batch.batch_id, error)
            await self._store.change(batch.batch_id, lambda current: _without_input(current, error, self._clock()))

    async def _advance(self, batch: Batch, news: asyncio.Event) -> None:
        """Bring a batch from its status to the next one."""
        match batch.status:
            case BatchStatus.VALIDATING:
                await self._validate(batch)
            case BatchStatus.IN_PROGRESS:
                await self._run_lines(batch, news)
            case BatchStatus.FINALIZING | BatchStatus.CANCELLING:
                ended = await self._store.finish(batch, self._clock())
                logger.info("batch %s is %s: %d of %d", batch.batch_id, ended.status, ended.completed, ended.total)
            case _:
                raise AssertionError(f"batch {batch.batch_id} is {batch.status}")

    async def _validate(self, batch: Batch) -> None:
        requests = await self._open_input(batch)
        total, problems = await in_thread(lambda: requests.check(self._max_lines))

        def checked(current: Batch) -> Batch:
            if current.status is not BatchStatus.VALIDATING:  # cancelled meanwhile
                return current
            if problems:
                return current.at(BatchStatus.FAILED, self._clock(), problems=problems)
            return current.at(BatchStatus.IN_PROGRESS, self._clock(), total=total)

        await self._store.change(batch.batch_id, checked)

    async def _run_lines(self, batch: Batch, news: asyncio.Event) -> None:
        """Run the lines without a result until all have one, the window closes, or the batch is cancelled."""
        done = await self._store.lines_with_results(batch.batch_id)
        lines = asyncio.ensure_future(self._all_lines(batch, done))
        try:
            cancelled = await self._ended_by_cancel(batch, lines, news)
            is_late = not lines.done()
        finally:
            lines.cancel()
            await asyncio.wait((lines,))
        if not lines.cancelled():
            lines.result()
        if cancelled:
            return
        if is_late:
            await self._give_up(batch)
        ending = BatchStatus.EXPIRED if is_late else BatchStatus.COMPLETED
        await self._store.change(batch.batch_id, lambda current: _finalizing(current, ending, self._clock()))

    async def _ended_by_cancel(self, batch: Batch, lines: asyncio.Future[None], news: asyncio.Event) -> bool:
        """Wait for the end of ``lines`` or of the batch's time; True as soon as the batch is cancelled."""
        while True:
            left = max(0.0, batch.expires_at - self._clock())
            heard = asyncio.ensure_future(news.wait())
            try:
                await asyncio.wait((lines, heard), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                told = heard.done()
            finally:
                heard.cancel()
                await asyncio.wait((heard,))
            if told:
                news.clear()
                current = await self._store.batch(batch.tenant, batch.batch_id)
                if current.status is BatchStatus.CANCELLING:
                    return True
            if lines.done() or self._clock() >= batch.expires_at:
                return False

    async def _all_lines(self, batch: Batch, done: set[int]) -> None:
        window = asyncio.Semaphore(self._concurrency)
        requests = await self._open_input(batch)
        with closing(requests.lines(done)) as left:
            async with asyncio.TaskGroup() as running:
                while (line := await in_thread(lambda: next(left, None))) is not None:
                    await window.acquire()
                    running.create_task(self._line(batch, line)).add_done_callback(lambda _: window.release())

    async def _line(self, batch: Batch, line: BatchLine) -> None:
        answer = await self._answer(batch, line)
        result = LineResult(
            line=line.number,
            succeeded=answer.status == 200,
            body=response_line(line.custom_id, answer.status, answer.request_id, answer.body),
            usage=answer.usage,
        )
        await self._store.record(batch.batch_id, [result])
        self._stalled.discard(batch.tenant)

    async def _answer(self, batch: Batch, line: BatchLine) -> LineAnswer:
        while True:
            try:
                async with self._places:
                    return await self._run(batch, line)
            except LATER as error:
                self.num_retries += 1
                logger.debug("line %d of %s waits: %s", line.number, batch.batch_id, error)
                await asyncio.sleep(_seconds_until_retry(error))

    async def _run(self, batch: Batch, line: BatchLine) -> LineAnswer:
        self.num_running += 1
        try:
            return await self._run_line(batch.tenant, batch.endpoint, line.body)
        finally:
            self.num_running -= 1

    async def _give_up(self, batch: Batch) -> None:
        """Say of each line that has not ended that its time is over."""
        done = await self._store.lines_with_results(batch.batch_id)
        message = "the request was not run before the batch's completion window closed"
        requests = await self._open_input(batch)
        with closing(requests.lines(done)) as left:
            while some := await in_thread(lambda: list(itertools.islice(left, _AT_ONCE))):
                results = [
                    LineResult(
                        line=line.number,
                        succeeded=False,
                        body=error_line(line.custom_id, "batch_expired", message),
                    )
                    for line in some
                ]
                await self._store.record(batch.batch_id, results)


class _Lane:
    """The task of one tenant, and what wakes it."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.task: asyncio.Future[None] | None = None


def _finalizing(current: Batch, ending: BatchStatus, now: float) -> Batch:
    if current.status is not BatchStatus.IN_PROGRESS:  # cancelled at the last moment
        return current
    return current.at(BatchStatus.FINALIZING, now, ending=ending)


def _without_input(current: Batch, error: InputUnreadable, now: float) -> Batch:
    """A batch that ends for want of its input: at once, or when what has ended until now is in its files."""
    problems = (error.problem(),)
    match current.status:
        case BatchStatus.VALIDATING:
            return current.at(BatchStatus.FAILED, now, problems=problems)
        case BatchStatus.IN_PROGRESS:
            return current.at(BatchStatus.FINALIZING, now, ending=BatchStatus.FAILED, problems=problems)
        case _:  # cancelled meanwhile
            return current


def _first(errors: BaseExceptionGroup[InputUnreadable]) -> InputUnreadable:
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


def _seconds_until_retry(error: SessileError) -> float:
    if error.retry_after_s is not None:
        return error.retry_after_s
    return _STORE_RETRY_S if isinstance(error, StoreError) else _RETRY_S
