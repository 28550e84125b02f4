"""PL302, PL303: retrieved text and memories in the shared part."""

from __future__ import annotations

from typing import ClassVar

from ..breaks import Break, Scope
from ..grammars import words
from ..prompt import Section
from ..text_change import TextChange
from .base import Verdict

_BLOCK = 160


class MemoryInPrefix:
    """A memory or profile block changes within a session."""

    code: ClassVar[str] = "PL303"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.text is None or brk.section is Section.TOOLS or brk.scope is Scope.FLEET:
            return None
        if words.MEMORY.search(brk.text.context):
            was, now = brk.text.block
            return Verdict(self.code, "recalled memories change within the session", was=was, now=now)
        return None


class RetrievedEarly:
    """Text looked up for one query stands before history or instructions."""

    code: ClassVar[str] = "PL302"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.text is None or brk.section is Section.TOOLS:
            return None
        was, now = brk.text.block
        if _is_replaced_block(brk, brk.text) or (_several_words(brk.text) and _is_marked(brk.text)):
            return Verdict(
                self.code, "retrieved text changes with each query and stands before static text", was=was, now=now
            )
        return None


def _is_replaced_block(brk: Break, change: TextChange) -> bool:
    """A long block of the system text has other words than in the request before."""
    return (
        brk.section is Section.SYSTEM
        and brk.scope is Scope.LINEAGE
        and min(map(len, change.block)) >= _BLOCK
        and _low_overlap(change)
    )


def _is_marked(change: TextChange) -> bool:
    """Words that stand around retrieved text stand above the block, or in both versions of it."""
    return bool(words.RETRIEVED.search(change.context) or all(words.RETRIEVED.search(text) for text in change.block))


def _several_words(change: TextChange) -> bool:
    """More than one value was exchanged."""
    return max(len(span.text.split()) for span in change.hunk) > 3


def _low_overlap(change: TextChange) -> bool:
    """True when the two blocks share less than 60% of their words."""
    was, now = (set(text.split()) for text in change.block)
    return len(was & now) < 0.6 * max(1, min(len(was), len(now)))
