"""Runs a workload against a driver: sessions start as the load's shape says, repeat by repeat."""

from __future__ import annotations

import asyncio
import enum
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping

import msgspec

from ..driver.ask import Driver
from ..metrics.records import RepeatRecord, SessionRecord, TurnRecord, TurnStatus
from ..metrics.reuse import SentPrompt, reusable_shares
from ..workload.plan import SessionPlan, Workload
from ..workload.text import BlockTexts
from .session_run import RunContext, SessionRun
from .shape import Arrivals, LoadShape

_LOST_AFTER = 3  # turns, one after the other, that reached nobody


class Ended(enum.StrEnum):
    """Why a run was over."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    SERVER_LOST = "server lost"
    NOT_KEPT = "turns could not be written"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run left. Partial, and good, unless ``ended`` is DONE."""

    turns: tuple[TurnRecord, ...]
    sessions: tuple[SessionRecord, ...]
    repeats: tuple[RepeatRecord, ...]
    ended: Ended


async def _always() -> bool:
    return True


class LoadRunner:
    """Owns the records of one run. ``watch`` hears of every turn as it ends; ``is_there`` tells whether the server
    still listens, which is asked when the last turns of a repeat reached nobody."""

    def __init__(
        self,
        workload: Workload,
        driver: Driver,
        shape: LoadShape,
        *,
        watch: Callable[[TurnRecord], None] = lambda record: None,
        is_there: Callable[[], Awaitable[bool]] = _always,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        shape.check()
        self._workload = workload
        self._driver = driver
        self._shape = shape
        self._watch = watch
        self._is_there = is_there
        self._clock = clock
        self._texts = BlockTexts()
        self._turns: list[TurnRecord] = []
        self._sent: list[SentPrompt | None] = []
        self._sessions: list[SessionRecord] = []
        self._repeats: list[RepeatRecord] = []
        self._unreachable = 0
        self._counted_at = 0.0  # when the last of these ended
        self._lost = asyncio.Event()

    async def run(self, stop: asyncio.Event | None = None, not_kept: asyncio.Event | None = None) -> Outcome:
        """All repeats, until ``stop`` or ``not_kept`` (what is heard of turns cannot be kept) is set, or the server is
        gone."""
        ended = Ended.DONE
        ends = {
            Ended.SERVER_LOST: self._lost,
            Ended.NOT_KEPT: not_kept or asyncio.Event(),
            Ended.INTERRUPTED: stop or asyncio.Event(),
        }
        for repeat in range(self._shape.repeats):
            if ends[Ended.INTERRUPTED].is_set():
                ended = Ended.INTERRUPTED
                break
            ended = await self._one_repeat(repeat, ends)
            if ended is not Ended.DONE:
                break
        return Outcome(
            turns=tuple(self._turns), sessions=tuple(self._sessions), repeats=tuple(self._repeats), ended=ended
        )

    async def _one_repeat(self, repeat: int, ends: Mapping[Ended, asyncio.Event]) -> Ended:
        began = len(self._turns)
        origin = self._clock()
        duration = self._shape.duration_s
        context = RunContext(
            shape=self._shape,
            repeat=repeat,
            origin=origin,
            texts=self._texts,
            clock=self._clock,
            report=self._report,
            until=origin + duration if duration is not None else float("inf"),
        )
        work = asyncio.ensure_future(self._sessions_of(context))
        watchers = [asyncio.ensure_future(event.wait()) for event in ends.values()]
        try:
            await asyncio.wait((work, *watchers), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, *watchers):
                task.cancel()
            await asyncio.wait((work, *watchers))
        if not work.cancelled():
            work.result()
            if self._unreachable and not await self._is_there():
                self._lost.set()
        ended = self._how_it_ended(ends, whole=not work.cancelled())
        self._close_repeat(repeat, began, ended)
        return ended

    def _how_it_ended(self, ends: Mapping[Ended, asyncio.Event], *, whole: bool) -> Ended:
        """A signal that comes when all is done changes nothing; a server that was lost, or turns that were, do."""
        for ended, event in ends.items():
            if event.is_set() and not (whole and ended is Ended.INTERRUPTED):
                return ended
        return Ended.DONE

    def _close_repeat(self, repeat: int, began: int, ended: Ended) -> None:
        """Wall time is from the first turn's start to the last one's end; shares of reusable text are filled in."""
        found = [record for record in self._turns[began:] if record.status is not TurnStatus.SKIPPED]
        start = min((record.started_s for record in found), default=0.0)
        end = max((record.ended_s for record in found), default=0.0)
        self._repeats.append(RepeatRecord(repeat=repeat, wall_s=end - start, complete=ended is Ended.DONE))
        places = [place for place in range(began, len(self._turns)) if self._sent[place] is not None]
        shares = reusable_shares([sent for place in places if (sent := self._sent[place]) is not None])
        for place, share in zip(places, shares, strict=True):
            self._turns[place] = msgspec.structs.replace(self._turns[place], reusable_share=round(share, 4))
            self._sent[place] = None

    async def _sessions_of(self, context: RunContext) -> None:
        if self._shape.arrivals is Arrivals.CLOSED:
            queue = self._plans(context)
            async with asyncio.TaskGroup() as group:
                for worker in range(self._shape.concurrency):
                    delay = self._shape.ramp_s * worker / self._shape.concurrency
                    group.create_task(self._work_off(queue, context, delay))
            return
        async with asyncio.TaskGroup() as group:
            for plan, name, salt, arrival in self._timetable(context):
                await asyncio.sleep(max(0.0, context.origin + arrival - self._clock()))
                if self._clock() >= context.until:
                    break
                group.create_task(self._session(plan, name, salt, context))

    async def _work_off(self, queue: Iterator[tuple[SessionPlan, str, str]], context: RunContext, delay: float) -> None:
        await asyncio.sleep(delay)
        for plan, name, salt in queue:
            if self._clock() >= context.until:
                return
            await self._session(plan, name, salt, context)

    async def _session(self, plan: SessionPlan, name: str, salt: str, context: RunContext) -> None:
        run = SessionRun(plan, name, self._driver.conversation(name), context, salt)
        self._sessions.append(await run.run())

    def _plans(self, context: RunContext) -> Iterator[tuple[SessionPlan, str, str]]:
        """Sessions in their order; with a duration, again and again, each round under a first line of its own."""
        for round_number in itertools.count():
            parts = [f"run {context.repeat + 1}"] if self._shape.repeats > 1 else []
            parts += [f"round {round_number + 1}"] if self._shape.duration_s is not None else []
            salt = f"[{', '.join(parts)}, seed {self._shape.seed}]\n" if parts else ""
            for plan in self._workload.sessions:
                name = plan.session_id if round_number == 0 else f"{plan.session_id}~{round_number}"
                yield plan, name, salt
            if self._shape.duration_s is None:
                return

    def _timetable(self, context: RunContext) -> Iterator[tuple[SessionPlan, str, str, float]]:
        rng = random.Random(f"arrivals/{self._shape.seed}")
        clock = 0.0
        for number, (plan, name, salt) in enumerate(self._plans(context)):
            if self._shape.arrivals is Arrivals.TRACE:
                clock = plan.arrival_s / self._shape.speedup
            elif number:
                assert self._shape.rate is not None
                even = self._shape.arrivals is Arrivals.CONSTANT
                clock += 1 / self._shape.rate if even else rng.expovariate(self._shape.rate)
            yield plan, name, salt, clock

    def _report(self, record: TurnRecord, sent: SentPrompt | None) -> None:
        self._turns.append(record)
        self._sent.append(sent)
        if record.status is TurnStatus.OK:
            self._unreachable = 0
        elif record.status is TurnStatus.UNREACHABLE:
            self._count_unreachable(record)
        self._watch(record)

    def _count_unreachable(self, record: TurnRecord) -> None:
        """Turns that were under way together broke off together: they count as one."""
        if self._unreachable and record.started_s < self._counted_at:
            return
        self._unreachable += 1
        self._counted_at = record.ended_s
        if self._unreachable >= _LOST_AFTER:
            self._lost.set()
