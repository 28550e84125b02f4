"""PL108: worked examples that are drawn or shuffled again, in a text or as messages."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

from ..breaks import Break
from ..grammars import words
from ..prompt import Section, Unit
from ..text_change import TextChange
from .base import Verdict


class ResampledExamples:
    """Worked examples drawn or shuffled again."""

    code: ClassVar[str] = "PL108"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.section is Section.MESSAGES and steps_back(brk):
            return Verdict(self.code, "worked examples among the messages stand in another order")
        if brk.text is None or brk.section is Section.TOOLS:
            return None
        was, now = brk.text.region
        around = brk.text.was[max(0, brk.text.position - 300) : brk.text.position + 600]
        counts = [len(words.EXAMPLE.findall(text)) for text in (was, now)]
        if (
            min(counts) >= 1
            and (min(counts) >= 2 or len(words.EXAMPLE.findall(around)) >= 3)
            and _examples_changed(brk.text)
        ):
            return Verdict(self.code, "worked examples are drawn again before static text", was=was, now=now)
        return None


def _examples_changed(change: TextChange) -> bool:
    """The change itself lies in an example, not in a value next to one."""
    line = change.lines[0].text
    above = change.was[max(0, change.position - 400) : change.position]
    return bool(words.EXAMPLE.search(line) or words.EXAMPLE.search(above))


def steps_back(brk: Break) -> int:
    """How often the questions with their answers that both prompts hold go back to an earlier one.

    0: in the old order. 1: two parts have changed places, as when dropped turns are asked again. More: shuffled.
    """
    was, now = _answered(brk.was_tail), _answered(brk.now_tail)
    shared = [was.index(pair) for pair in now if was.count(pair) == now.count(pair) == 1]
    steps = sum(a > b for a, b in pairwise(shared))
    return steps + (steps > 0 and shared[-1] > shared[0])


def _answered(units: list[Unit]) -> list[tuple[int, int]]:
    """Digests of each question of a person and the answer right behind it."""
    return [(a.digest, b.digest) for a, b in pairwise(units) if a.role == "user" and b.role in ("assistant", "model")]
