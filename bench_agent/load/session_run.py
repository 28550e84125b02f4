"""One session in flight: its turns start when those before them are over and the gap has passed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ..driver.ask import Ask, Conversation, Sampling, ServerUnreachable
from ..driver.observation import Observation
from ..errors import BenchError
from ..metrics.records import SessionRecord, TurnRecord, TurnStatus
from ..metrics.reuse import SentPrompt
from ..workload.plan import BlocksPrompt, Message, MessagesPrompt, SessionPlan, TextPrompt, Turn
from ..workload.text import BlockTexts
from .attempts import attempt
from .shape import History, LoadShape


@dataclass(frozen=True, slots=True)
class RunContext:
    """What all sessions of a repeat share. ``origin``: the clock at its start; ``until``: no turn starts later."""

    shape: LoadShape
    repeat: int
    origin: float
    texts: BlockTexts
    clock: Callable[[], float]
    report: Callable[[TurnRecord, SentPrompt | None], None]
    until: float = math.inf


@dataclass(slots=True)
class _Place:
    """A turn's outcome, for those that come after it."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    ok: bool = False
    conversation: tuple[Message, ...] = ()


class SessionRun:
    """Runs the turns of one session through one conversation of a driver."""

    def __init__(
        self, plan: SessionPlan, name: str, conversation: Conversation, context: RunContext, salt: str
    ) -> None:
        self._plan = plan
        self._name = name
        self._conversation = conversation
        self._context = context
        self._salt = salt
        self._places = [_Place() for _ in plan.turns]
        self._last_child = {turn.continues: index for index, turn in enumerate(plan.turns)}
        self._spans: list[tuple[float, float]] = []

    async def run(self) -> SessionRecord:
        """All turns. A turn after one that failed is skipped. Cancelled: running turns are reported as interrupted."""
        try:
            async with asyncio.TaskGroup() as group:
                for index in range(len(self._plan.turns)):
                    group.create_task(self._turn(index))
        finally:
            await self._conversation.close()
        ok = all(place.ok for place in self._places)
        started = min((span[0] for span in self._spans), default=0.0)
        ended = max((span[1] for span in self._spans), default=0.0)
        return SessionRecord(
            repeat=self._context.repeat,
            session=self._name,
            started_s=started,
            ended_s=ended,
            turns=len(self._places),
            ok=ok,
        )

    async def _turn(self, index: int) -> None:
        turn, place = self._plan.turns[index], self._places[index]
        try:
            for other in turn.after:
                await self._places[other].over.wait()
            if not all(self._places[other].ok for other in turn.after):
                self._skip(index, "a turn before it failed")
                return
            if turn.gap_s:
                await asyncio.sleep(turn.gap_s)
            if self._context.clock() >= self._context.until:
                self._skip(index, "the time was over")
                return
            await self._send(index)
        finally:
            place.over.set()

    async def _send(self, index: int) -> None:
        turn, place = self._plan.turns[index], self._places[index]
        ask = self._ask(index)
        seen = Observation(clock=self._context.clock)
        status, fault = TurnStatus.INTERRUPTED, None
        try:
            await attempt(self._conversation, ask, seen, self._context.shape.retries)
            status = TurnStatus.OK
        except ServerUnreachable as error:
            status, fault = TurnStatus.UNREACHABLE, str(error)
        except BenchError as error:
            status, fault = TurnStatus.ERROR, str(error)
        finally:
            self._report(ask, turn, seen, status, fault)
        if status is TurnStatus.OK:
            place.conversation = (*ask.conversation, self._answer(turn, seen))
            place.ok = True

    def _ask(self, index: int) -> Ask:
        turn = self._plan.turns[index]
        shape = self._context.shape
        sampling = Sampling(
            max_tokens=turn.output_tokens or shape.default_output_tokens,
            exact_length=shape.exact_length and turn.output_tokens is not None,
            temperature=shape.temperature,
            seed=shape.seed if shape.temperature else None,
        )
        if not isinstance(turn.prompt, MessagesPrompt):
            return Ask(index=index, text=self._salt + self._whole_text(turn.prompt), sampling=sampling)
        new = self._new_messages(turn.prompt.messages)
        before = () if turn.continues is None else self._places[turn.continues].conversation
        if turn.continues is None and self._salt:
            new = (msgspec.structs.replace(new[0], content=self._salt + new[0].content), *new[1:])
        return Ask(
            index=index,
            continues=turn.continues,
            conversation=before + new,
            new=new,
            tools=self._plan.tools if shape.send_tools else (),
            sampling=sampling,
            closes_branch=self._last_child.get(turn.continues) == index,
        )

    def _whole_text(self, prompt: TextPrompt | BlocksPrompt) -> str:
        return prompt.text if isinstance(prompt, TextPrompt) else self._context.texts.text(prompt)

    def _new_messages(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """With the server's own answers a tool's result has no call that it answers: it becomes the user's message."""
        if self._context.shape.history is History.RECORDED:
            return messages
        return tuple(
            Message("user", f"Tool result:\n{message.content}") if message.role == "tool" else message
            for message in messages
        )

    def _answer(self, turn: Turn, seen: Observation) -> Message:
        if self._context.shape.history is History.RECORDED and turn.recorded is not None:
            return turn.recorded
        return Message("assistant", seen.text)

    def _skip(self, index: int, why: str) -> None:
        now = self._context.clock() - self._context.origin
        turn = self._plan.turns[index]
        self._context.report(
            TurnRecord(
                repeat=self._context.repeat,
                session=self._name,
                turn=index,
                agent=turn.agent,
                status=TurnStatus.SKIPPED,
                started_s=now,
                ended_s=now,
                error=why,
            ),
            None,
        )

    def _report(self, ask: Ask, turn: Turn, seen: Observation, status: TurnStatus, fault: str | None) -> None:
        origin, usage = self._context.origin, seen.usage
        ended = seen.ended or self._context.clock()
        started = seen.started or ended
        self._spans.append((started - origin, ended - origin))
        record = TurnRecord(
            repeat=self._context.repeat,
            session=self._name,
            turn=ask.index,
            agent=turn.agent,
            first=ask.continues is None and (ask.text is None or ask.index == 0),
            status=status,
            started_s=round(started - origin, 6),
            ended_s=round(ended - origin, 6),
            arrivals_s=tuple(round(stamp - started, 6) for stamp, _ in seen.arrivals),
            arrived_tokens=tuple(tokens for _, tokens in seen.arrivals),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            by_source=usage.by_source,
            drafted_tokens=usage.drafted_tokens,
            accepted_tokens=usage.accepted_tokens,
            queue_s=usage.queue_s,
            prefill_s=usage.prefill_s,
            finish_reason=seen.finish_reason,
            tool_calls=len(seen.tool_calls),
            retries=seen.retries,
            error=fault,
        )
        self._context.report(record, _sent_prompt(ask, seen, record))


def _sent_prompt(ask: Ask, seen: Observation, record: TurnRecord) -> SentPrompt:
    if ask.text is not None:
        return SentPrompt(record.started_s, record.ended_s, (ask.text,), seen.text)
    pieces = tuple(f"<{message.role}>{message.content}" for message in ask.conversation)
    return SentPrompt(record.started_s, record.ended_s, pieces, f"<assistant>{seen.text}")
