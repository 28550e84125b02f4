"""What a rule is: one class that looks at a break and says whether it knows its kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from ..breaks import Break, Scope
from ..findings import Severity
from ..grammars.spans import Span
from ..severity import Recurrence


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rule's answer. `cap` and `floor` bound the severity that the loss gives."""

    rule: str
    message: str
    recurrence: Recurrence = Recurrence.EACH_REQUEST
    cap: Severity | None = None
    floor: Severity | None = None
    was: str | None = None
    now: str | None = None
    path: str | None = None
    needs_loss: bool = True  # nothing is said when the loss is below the reporting threshold


class BreakRule(Protocol):
    """A rule over breaks. Rules are asked in order, most specific first; the first verdict stands."""

    code: ClassVar[str]

    def judge(self, brk: Break) -> Verdict | None:
        """A verdict when the break is of this rule's kind."""


def values(found: tuple[Span, Span]) -> tuple[str, str]:
    """The two texts of a pair of spans."""
    return found[0].text, found[1].text


def is_scalar(brk: Break, found: tuple[Span, Span]) -> bool:
    """True when the line agrees again right after the two values: only they changed there."""
    assert brk.text is not None
    was_line, now_line = brk.text.lines
    return brk.text.was[found[0].end : was_line.end] == brk.text.now[found[1].end : now_line.end]


def once_a_session(scope: Scope) -> Severity | None:
    """A cap for values that are constant in a session: they cost the start of each session only."""
    return Severity.WARNING if scope is Scope.FLEET else None
