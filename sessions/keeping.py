"""How a session's KV is to be kept: its persistence policy and the hints that outlive a connection. Pure values.

A hint is never needed for a right answer. What a session was told last holds, kind by kind; the log and the version
do not change by it.
"""

from __future__ import annotations

import enum
import math

import msgspec

from .errors import RequestError

MAX_EXPECTED_CHARACTERS = 1_000_000
MAX_BRANCHES = 1_000
BRANCH_TTL_S = 600.0  # a fork that was announced is waited for so long
_P95_OF_P50 = 4.0  # of a tool whose hint names its median alone


class Persistence(enum.StrEnum):
    """When KV is written to the disk tier."""

    NONE = "none"
    ON_SUSPEND = "on_suspend"
    ON_IDLE = "on_idle"
    ALWAYS = "always"


class PersistencePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a session's KV is written. ``idle_s``, of ON_IDLE: after so many seconds without a turn."""

    when: Persistence
    idle_s: float | None = None  # None: as the server is configured

    def validate(self) -> None:
        """Raise RequestError unless the policy can be kept."""
        if self.idle_s is None:
            return
        if self.when is not Persistence.ON_IDLE:
            raise RequestError(
                f"idle_seconds has no meaning with {self.when.value}",
                field="persistence.idle_seconds",
                remedy="leave it out, or choose on_idle",
            )
        _require_seconds(self.idle_s, "persistence.idle_seconds", least=0.0)


class ToolWait(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="tool_wait"):
    """The session waits for ``tool``; half of its results come within ``p50_s`` seconds, 95% within ``p95_s``."""

    tool: str
    p50_s: float | None = None
    p95_s: float | None = None

    def expected_idle_s(self) -> tuple[float, float] | None:
        """Median and 95th percentile; None where the hint names no times."""
        if self.p50_s is None:
            return None
        return self.p50_s, self.p95_s if self.p95_s is not None else _P95_OF_P50 * self.p50_s


class Retain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="retain"):
    """Keep the path for ``ttl_s`` seconds (None: until the session is closed; 0: no longer)."""

    ttl_s: float | None = None
    priority: int = 0
    hard: bool = False


class WillBranch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="will_branch"):
    """The present end of the log will be forked ``branches`` times."""

    branches: int


class ExpectedOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="expected_output"):
    """What the next answer will be like."""

    text: str


class Final(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="final"):
    """The turn that runs, or else the next one, is the last: after it the session's KV is the first to go."""


Hint = ToolWait | Retain | WillBranch | ExpectedOutput | Final


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """A retention that holds until ``until`` (seconds since the epoch; None: until the session is closed)."""

    priority: int
    hard: bool
    until: float | None

    def ttl_s(self, now: float) -> float | None:
        """Seconds that are left, 0 or less where none are; None: no time limits it."""
        return None if self.until is None else self.until - now


class BranchPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A point of the log (its first ``num_tokens`` tokens) that ``forks_left`` forks are expected at."""

    num_tokens: int
    forks_left: int
    until: float


class Keeping(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds for one session. ``persistence`` None: as the server is configured."""

    persistence: PersistencePolicy | None = None
    retained: Retained | None = None
    branch: BranchPoint | None = None
    expected_output: str | None = None
    final: bool = False
    suspended: bool = False

    def policy(self, of_server: PersistencePolicy) -> PersistencePolicy:
        """The policy that holds; ``of_server`` has what is not said here."""
        mine = self.persistence
        if mine is None:
            return of_server
        if mine.when is Persistence.ON_IDLE and mine.idle_s is None:
            return msgspec.structs.replace(mine, idle_s=of_server.idle_s)
        return mine

    def with_hint(self, hint: Hint, num_tokens: int, *, now: float) -> Keeping:
        """After a hint that was given when the log had ``num_tokens`` tokens."""
        match hint:
            case ToolWait():
                return self  # of this moment: the engine is told, and nothing outlives the wait
            case Retain(ttl_s=0):
                return msgspec.structs.replace(self, retained=None)
            case Retain(ttl_s=ttl_s, priority=priority, hard=hard):
                until = None if ttl_s is None else now + ttl_s
                return msgspec.structs.replace(
                    self, retained=Retained(priority=priority, hard=hard, until=until), final=False
                )
            case WillBranch(branches=branches):
                point = BranchPoint(num_tokens=num_tokens, forks_left=branches, until=now + BRANCH_TTL_S)
                return msgspec.structs.replace(self, branch=point)
            case ExpectedOutput(text=text):
                return msgspec.structs.replace(self, expected_output=text)
            case Final():
                return msgspec.structs.replace(self, final=True, retained=None, branch=None)

    def after_turn(self, expected_output: str | None) -> Keeping:
        """After a turn that was run with this expected output; one that was given meanwhile is for the next."""
        used = self.expected_output is not None and self.expected_output == expected_output
        return msgspec.structs.replace(self, expected_output=None if used else self.expected_output, suspended=False)

    def forked_at(self, num_tokens: int) -> Keeping:
        """The source, after a fork at that point."""
        if self.branch is None or self.branch.num_tokens != num_tokens:
            return self
        left = self.branch.forks_left - 1
        branch = msgspec.structs.replace(self.branch, forks_left=left) if left else None
        return msgspec.structs.replace(self, branch=branch)

    def of_fork(self) -> Keeping:
        """What a fork inherits."""
        return Keeping(persistence=self.persistence)


NOTHING_SAID = Keeping()


def require_hint(hint: Hint) -> None:
    """Raise RequestError naming the first field that is out of range."""
    match hint:
        case ToolWait():
            _require_tool_wait(hint)
        case Retain(ttl_s=ttl_s, priority=priority):
            if ttl_s is not None:
                _require_seconds(ttl_s, "hint.retain.ttl_seconds", least=0.0)
            if not -100 <= priority <= 100:
                raise RequestError(
                    f"the priority is {priority}", field="hint.retain.priority", remedy="it must be from -100 to 100"
                )
        case WillBranch(branches=branches):
            if not 1 <= branches <= MAX_BRANCHES:
                raise RequestError(
                    f"{branches} branches", field="hint.will_branch.branches", remedy=f"from 1 to {MAX_BRANCHES}"
                )
        case ExpectedOutput(text=text):
            _require_expected(text)
        case Final():
            pass


def is_tool_name(name: str) -> bool:
    """Whether latencies are kept under ``name``."""
    return 0 < len(name) <= 200 and name.isprintable()


def _require_tool_wait(hint: ToolWait) -> None:
    where = "hint.tool_wait"
    if not is_tool_name(hint.tool):
        raise RequestError("the tool has no usable name", field=f"{where}.tool", remedy="1 to 200 printable characters")
    if hint.p50_s is not None:
        _require_seconds(hint.p50_s, f"{where}.p50_seconds", least=0.0)
    if hint.p95_s is None:
        return
    if hint.p50_s is None:
        raise RequestError(
            "p95_seconds is given without p50_seconds", field=f"{where}.p50_seconds", remedy="give both, or p50 alone"
        )
    _require_seconds(hint.p95_s, f"{where}.p95_seconds", least=hint.p50_s)


def _require_seconds(seconds: float, field: str, *, least: float) -> None:
    if not least <= seconds < math.inf:
        raise RequestError(f"{field} is {seconds}", field=field, remedy=f"a number of seconds, {least:g} or more")


def _require_expected(text: str) -> None:
    where = "hint.expected_output.text"
    if not text:
        raise RequestError("the expected output is empty", field=where, remedy="leave the hint out")
    if len(text) > MAX_EXPECTED_CHARACTERS:
        raise RequestError(
            f"the expected output has {len(text)} characters", field=where, remedy=f"at most {MAX_EXPECTED_CHARACTERS}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the expected output has a lone surrogate at character {error.start}",
            field=where,
            remedy="send valid Unicode",
        ) from error
