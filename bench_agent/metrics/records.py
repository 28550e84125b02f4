"""What is kept of a run: one record a turn, one a session."""

from __future__ import annotations

import enum
import itertools

import msgspec


class TurnStatus(enum.StrEnum):
    """What became of a turn. Skipped: a turn that it builds on had failed, or the time was over."""

    OK = "ok"
    ERROR = "error"
    UNREACHABLE = "unreachable"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn. Times are seconds; ``started_s`` and ``ended_s`` count from the start of the repeat.

    ``arrivals_s``: when each piece of the answer came, counted from the start of the turn; ``arrived_tokens``: how many
    tokens each held. ``first``: the first turn of its conversation. ``reusable_share``: of the prompt's characters,
    those that earlier prompts and answers of the repeat began with. Token counts are the server's; None: not said.
    """

    repeat: int
    session: str
    turn: int
    agent: str = "main"
    first: bool = False
    status: TurnStatus = TurnStatus.OK
    started_s: float = 0.0
    ended_s: float = 0.0
    arrivals_s: tuple[float, ...] = ()
    arrived_tokens: tuple[int, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    by_source: dict[str, int] = {}
    reusable_share: float | None = None
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    queue_s: float | None = None
    prefill_s: float | None = None
    finish_reason: str | None = None
    tool_calls: int = 0
    retries: int = 0
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first piece of the answer; None when none came."""
        return self.arrivals_s[0] if self.arrivals_s else None

    @property
    def e2e_s(self) -> float:
        """Time to the end of the answer."""
        return self.ended_s - self.started_s

    @property
    def output_tokens(self) -> int:
        """As the server says, else as many as the pieces hold."""
        return sum(self.arrived_tokens) if self.completion_tokens is None else self.completion_tokens

    @property
    def tpot_s(self) -> float | None:
        """Seconds an output token after the first; None for answers of fewer than two tokens."""
        if not self.arrivals_s or self.output_tokens < 2:
            return None
        return (self.arrivals_s[-1] - self.arrivals_s[0]) / (self.output_tokens - 1)

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Inter-token latency as it is seen: the time between pieces."""
        return tuple(b - a for a, b in itertools.pairwise(self.arrivals_s))


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One session, which is one task of an agent: from its first turn's start to its last turn's end, gaps included."""

    repeat: int
    session: str
    started_s: float
    ended_s: float
    turns: int
    ok: bool

    @property
    def task_s(self) -> float:
        """How long the task took."""
        return self.ended_s - self.started_s


class RepeatRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One repeat: from the first turn's start to the last turn's end."""

    repeat: int
    wall_s: float
    complete: bool = True
