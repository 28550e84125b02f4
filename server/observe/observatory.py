"""The observatory: what is known of turns, in one place. The session manager and the engine's client tell it, the web
and whoever else looks ask it.

    asked ──> turn_started ──> turn_admitted ──> tokens_came … ──> turn_ended ──> miss_of
    manager   engine's client                                                     manager
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...prompt_lint.live import PromptReading
from ...sessions.manager.turn_events import Miss
from ..engine.messages import AdmittedTurn, SubmitTurn, TurnUsage
from ..engine.turn_watch import TurnWatch
from .config import ObserveConfig
from .kv_events import KvEventLog
from .miss_explainer import MAX_WAITING, MissExplainer, Question
from .miss_log import LEAST_TOKENS, LoggedMiss, MissLog, miss_of_cause, miss_of_finding
from .reuse_counts import ReuseTable
from .timeline import Timelines
from .trace_log import TraceLog
from .turn_record import TurnRecord
from .turn_times import TurnTimes

logger = logging.getLogger(__name__)
MAX_ENDED = 1024  # turns that are remembered after their end, for those who ask late


class RecordSink(Protocol):
    """Gets each turn that has ended. It neither raises nor waits."""

    def write(self, record: TurnRecord, content: Callable[[], dict[str, Any]] | None) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _OpenTurn:
    turn: SubmitTurn
    conversation: str
    started_at: float
    content: Callable[[], dict[str, Any]] | None = None
    question: Question | None = None
    miss: Miss | None = None


@dataclass(frozen=True, slots=True)
class _EndedTurn:
    """What may still be asked of a turn. Its tokens and its text are let go."""

    tenant: str
    conversation: str
    miss: Miss | None


@dataclass(frozen=True, slots=True)
class _LateTurn:
    """A turn that ended without an explanation, which may still come."""

    question: Question
    conversation: str
    usage: TurnUsage
    ended_at: float


@dataclass(slots=True)
class _Clocks:
    wall: Callable[[], float] = field(default=time.time)
    steady: Callable[[], float] = field(default=time.monotonic)


class Observatory:
    """Alone keeps what is observed. One asyncio loop tells it and asks it; nothing here waits.

    ``reading``: how the served model's prompts are made, for misses that only the rendered prompt or its tokens show.
    """

    def __init__(
        self,
        config: ObserveConfig | None = None,
        *,
        model: str = "",
        reading: PromptReading | None = None,
        trace_log: TraceLog | None = None,
        spans: RecordSink | None = None,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config if config is not None else ObserveConfig()
        self.model = model
        self._clocks = _Clocks(wall_clock, clock)
        self.reuse = ReuseTable(clock)
        self.times = TurnTimes()
        self.timelines = Timelines()
        self._misses = MissLog()
        self.kv_events = KvEventLog(self.timelines.moved)
        self.explainer = MissExplainer(reading)
        self.trace_log = trace_log
        self._sinks: list[RecordSink] = [sink for sink in (trace_log, spans) if sink is not None]
        self.num_late = 0  # turns that ended before they were explained
        self._late: deque[_LateTurn] = deque(maxlen=MAX_WAITING)
        self.num_events = 0  # changes whenever something was noted
        self._open: dict[str, _OpenTurn] = {}
        self._ended: OrderedDict[str, _EndedTurn] = OrderedDict()

    def close(self) -> None:
        """End the thread that explains, and let the sinks finish."""
        self.explainer.close()
        for sink in self._sinks:
            sink.close()

    def now(self) -> float:
        """Seconds on the clock of the windows."""
        return self._clocks.steady()

    def wall_now(self) -> float:
        """Seconds since the epoch."""
        return self._clocks.wall()

    @property
    def misses(self) -> MissLog:
        """The explained misses, those included that were explained when their turns were over."""
        self._settle_late()
        return self._misses

    @property
    def num_open(self) -> int:
        """Turns that run now."""
        return len(self._open)

    # -- told by the session manager ------------------------------------------------------------------------------

    def asked(self, turn: SubmitTurn, conversation: str, lineage: str, content: Callable[[], dict[str, Any]]) -> None:
        """See ``TurnObserver``."""
        now = self._clocks.wall()
        question = Question(turn.turn_id, turn.tenant, lineage or None, content, turn.token_ids, now)
        asked = self.explainer.ask(question)
        self._open[turn.turn_id] = _OpenTurn(turn, conversation, now, content, question if asked else None)

    def miss_of(self, turn_id: str) -> Miss | None:
        """See ``TurnObserver``."""
        ended = self._ended.get(turn_id)
        return None if ended is None else ended.miss

    def forked(self, session_id: str, parent: str) -> None:
        """See ``TurnObserver``."""
        self.timelines.forked(session_id, parent)

    # -- told by the engine's client ------------------------------------------------------------------------------

    def turn_started(self, turn: SubmitTurn) -> None:
        """A turn was sent to the engine."""
        open_turn = self._open.get(turn.turn_id)
        if open_turn is None:
            open_turn = self._open[turn.turn_id] = _OpenTurn(turn, turn.owner, self._clocks.wall())
        if open_turn.conversation:
            self.timelines.started(open_turn.conversation, turn.tenant)
        self.num_events += 1

    def turn_admitted(self, admitted: AdmittedTurn) -> None:
        """The engine has counted a turn's prompt."""
        open_turn, ended = self._open.get(admitted.turn_id), self._ended.get(admitted.turn_id)
        tenant, conversation = "", ""
        if open_turn is not None:
            tenant, conversation = open_turn.turn.tenant, open_turn.conversation
        elif ended is not None:
            tenant, conversation = ended.tenant, ended.conversation
        self.reuse.add(admitted, tenant, conversation, self.model)
        self.num_events += 1

    def tokens_came(self, turn: SubmitTurn, seconds: float, count: int, *, first: bool) -> None:
        """See ``TurnListener``."""
        if first:
            self.times.first_token(seconds, self.now())
        else:
            self.times.more_tokens(seconds, count, self.now())

    def turn_ended(self, turn: SubmitTurn, watch: TurnWatch) -> None:
        """A turn is over, however it ended."""
        self._settle_late()
        open_turn = self._open.pop(turn.turn_id)
        if watch.usage is not None:
            open_turn.miss = self._miss(open_turn, watch.usage)
        if open_turn.question is not None:
            self.explainer.answered(open_turn.question, watch.output_token_ids)
        self._ended[turn.turn_id] = _EndedTurn(turn.tenant, open_turn.conversation, open_turn.miss)
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        record = TurnRecord(
            turn=turn,
            conversation=open_turn.conversation,
            started_at=open_turn.started_at,
            ttft_s=watch.ttft_s,
            duration_s=watch.duration_s,
            outcome=watch.outcome,
            usage=watch.usage,
            output_token_ids=tuple(watch.output_token_ids),
            miss=open_turn.miss,
        )
        self.times.ended(record)
        if record.conversation:
            self.timelines.ended(record)
        for sink in self._sinks:
            sink.write(record, open_turn.content)
        self.num_events += 1

    # -- parts ----------------------------------------------------------------------------------------------------

    def _miss(self, open_turn: _OpenTurn, usage: TurnUsage) -> Miss | None:
        """What prompt-lint found or what the engine says, whichever cost more."""
        found, caused, question = None, miss_of_cause(usage), open_turn.question
        if question is not None and question.done.is_set():
            found = self._judged(question, usage)
        elif question is not None:
            self.num_late += 1
            if caused is None:
                self._late.append(_LateTurn(question, open_turn.conversation, usage, self._clocks.wall()))
        both = [miss for miss in (found, caused) if miss is not None]
        miss = max(both, key=lambda miss: miss.lost_tokens, default=None)
        if miss is not None:
            self._log(open_turn.turn, open_turn.conversation, usage, miss, self._clocks.wall())
        return miss

    def _settle_late(self) -> None:
        """Log what was explained meanwhile, and let it go: a late turn's question holds its whole request."""
        while self._late and self._late[0].question.done.is_set():
            late = self._late.popleft()
            miss = self._judged(late.question, late.usage)
            if miss is not None:
                self._log(late.question, late.conversation, late.usage, miss, late.ended_at)

    def _judged(self, question: Question, usage: TurnUsage) -> Miss | None:
        """The explanation, if the turn really computed what it predicts."""
        if question.finding is None:
            return None
        computed = usage.prompt_tokens - usage.tokens_by_source.cached
        if computed < max(LEAST_TOKENS, question.finding.cost.tokens // 2):
            return None  # the server has made good for it: another request's KV, or the conversation's exact tokens
        return miss_of_finding(question.finding, usage, show_text=self.config.miss_text == "on")

    def _log(self, turn: SubmitTurn | Question, conversation: str, usage: TurnUsage, miss: Miss, at: float) -> None:
        self._misses.add(
            LoggedMiss(
                at=at,
                tenant=turn.tenant,
                session=conversation,
                turn_id=turn.turn_id,
                model=self.model,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.tokens_by_source.cached,
                reusable_tokens=usage.reusable_tokens,
                missed=usage.missed,
                miss=miss,
            )
        )
