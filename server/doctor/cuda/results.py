"""Lines of the self-test's table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console
from rich.table import Table

logger = logging.getLogger(__name__)
_Line = TypeVar("_Line")


@dataclass(frozen=True, slots=True)
class Correctness:
    """An op compared with its reference: norm of the error over norm of the result, 0 where bits must be equal."""

    op: str
    case: str
    error: float
    allowed: float

    @property
    def is_right(self) -> bool:
        return self.error <= self.allowed  # a NaN is not


@dataclass(frozen=True, slots=True)
class Speed:
    """An op's time, as a share of what the GPU can do at best; ``goal`` None: for information."""

    op: str
    case: str
    seconds: float
    share: float | None
    of: str  # what it is a share of
    goal: float | None

    @property
    def reaches_goal(self) -> bool:
        return self.goal is None or (self.share is not None and self.share >= self.goal)


def going_on(lines: Iterator[_Line], broken: Callable[[str], _Line]) -> Iterator[_Line]:
    """The lines, and ``broken`` of the error's text where the work behind them fails: the rest of a report goes on."""
    try:
        yield from lines
    except Exception as error:
        logger.exception("a part of the self-test failed")
        yield broken(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:60]}")


def print_results(title: str, correctness: Sequence[Correctness], speeds: Sequence[Speed]) -> None:
    """Write both tables to the standard output."""
    console = Console(width=120, soft_wrap=True)
    console.print(title, style="bold")
    console.print(_correctness_table(correctness))
    if speeds:
        console.print(_speed_table(speeds))
    wrong = sum(not line.is_right for line in correctness)
    slow = sum(not line.reaches_goal for line in speeds)
    console.print(f"{len(correctness)} checks, {wrong} wrong; {len(speeds)} speeds, {slow} below their goal")


def _correctness_table(lines: Sequence[Correctness]) -> Table:
    table = Table("op", "case", "error", "allowed", "", box=None, pad_edge=False)
    for line in lines:
        verdict = "right" if line.is_right else "[bold red]WRONG[/]"
        table.add_row(line.op, line.case, f"{line.error:.1e}", f"{line.allowed:.0e}", verdict)
    return table


def _speed_table(lines: Sequence[Speed]) -> Table:
    table = Table("op", "case", "time", "share", "of", "goal", "", box=None, pad_edge=False)
    for line in lines:
        share = "" if line.share is None else f"{line.share:.0%}"
        goal = "" if line.goal is None else f"{line.goal:.0%}"
        verdict = "" if line.goal is None else ("reached" if line.reaches_goal else "[yellow]below[/]")
        table.add_row(line.op, line.case, _time(line.seconds), share, line.of, goal, verdict)
    return table


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
