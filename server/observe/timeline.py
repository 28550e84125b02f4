"""What each session did lately, turn by turn, for whoever looks at it."""

from __future__ import annotations

from collections import deque

import msgspec

from ..engine.messages import TokensBySource
from .reuse_counts import LatestByName
from .turn_record import TurnRecord

MAX_SESSIONS = 2_000
MAX_TURNS = 200  # of a session
MAX_MARKS = 40_000  # of all sessions, half a kilobyte each: those that ran least lately are shortened
KEPT_TURNS = 12  # of a session that is shortened


class TurnMark(msgspec.Struct, frozen=True, kw_only=True):
    """One turn on a session's line. Seconds; ``at`` since the epoch, ``gap_s`` since the turn before ended."""

    at: float
    gap_s: float
    queue_s: float
    load_s: float
    prefill_s: float
    ttft_s: float | None
    duration_s: float
    prompt_tokens: int
    reusable_tokens: int
    completion_tokens: int
    by_source: TokensBySource
    drafted_tokens: int
    accepted_tokens: int
    outcome: str
    rule: str


class SessionLine:
    """One session: whose it is, where it came from, and its latest turns."""

    def __init__(self) -> None:
        self.tenant = ""
        self.parent = ""
        self.running = 0
        self.num_turns = 0
        self.prompt_tokens = 0  # of all its turns
        self.cached_tokens = 0
        self.rule = ""  # of the latest miss
        self.tier = ""  # where the last of its KV was seen to go
        self.turns: deque[TurnMark] = deque(maxlen=MAX_TURNS)

    @property
    def first_at(self) -> float:
        """When the first turn that is kept began, in seconds since the epoch; 0.0 before any has."""
        return self.turns[0].at if self.turns else 0.0

    @property
    def last_at(self) -> float:
        """When its last turn ended, in seconds since the epoch; 0.0 before any has."""
        return self.turns[-1].at + self.turns[-1].duration_s if self.turns else 0.0


class Timelines:
    """Alone keeps the lines. One asyncio loop uses it."""

    def __init__(self) -> None:
        self.lines = LatestByName(MAX_SESSIONS, SessionLine, self._forgotten)
        self._num_marks = 0

    def started(self, conversation: str, tenant: str) -> None:
        """A turn of this conversation begins."""
        line = self.lines[conversation]
        line.tenant = tenant
        line.running += 1

    def forked(self, conversation: str, parent: str) -> None:
        """A session that begins as a branch of another."""
        self.lines[conversation].parent = parent

    def moved(self, conversation: str, tier: str) -> None:
        """The end of a session's KV is in ``tier`` now."""
        line = self.lines.get(conversation)
        if line is not None:
            line.tier = tier

    def ended(self, record: TurnRecord) -> None:
        """A turn that ``started`` is over."""
        line = self.lines[record.conversation]
        line.running = max(0, line.running - 1)
        line.num_turns += 1
        line.tier = "device"
        if record.usage is not None:
            line.prompt_tokens += record.usage.prompt_tokens
            line.cached_tokens += record.usage.tokens_by_source.cached
        if record.miss is not None:
            line.rule = record.miss.rule
        self._num_marks += len(line.turns) < MAX_TURNS
        line.turns.append(_mark(record, gap_s=max(0.0, record.started_at - line.last_at) if line.turns else 0.0))
        if self._num_marks > MAX_MARKS:
            self._shorten()

    def _shorten(self) -> None:
        """Make room for a tenth more, from the lines that were used least recently."""
        for _, line in reversed(self.lines.latest(len(self.lines))):
            while len(line.turns) > KEPT_TURNS:
                line.turns.popleft()
                self._num_marks -= 1
            if self._num_marks <= 0.9 * MAX_MARKS:
                return

    def _forgotten(self, line: SessionLine) -> None:
        self._num_marks -= len(line.turns)


def _mark(record: TurnRecord, gap_s: float) -> TurnMark:
    usage = record.usage
    return TurnMark(
        at=record.started_at,
        gap_s=gap_s,
        queue_s=usage.queue_s if usage else 0.0,
        load_s=usage.load_s if usage else 0.0,
        prefill_s=usage.prefill_s if usage else 0.0,
        ttft_s=record.ttft_s,
        duration_s=record.duration_s,
        prompt_tokens=len(record.turn.token_ids),
        reusable_tokens=usage.reusable_tokens if usage else 0,
        completion_tokens=len(record.output_token_ids),
        by_source=usage.tokens_by_source if usage else TokensBySource(),
        drafted_tokens=usage.drafted_tokens if usage else 0,
        accepted_tokens=usage.accepted_tokens if usage else 0,
        outcome=record.outcome,
        rule=record.miss.rule if record.miss else "",
    )
