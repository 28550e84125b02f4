"""PL301, PL304, PL305: text that many sessions could share stands behind text that differs."""

from __future__ import annotations

from typing import ClassVar

from ..breaks import Break, Scope
from ..grammars import words
from ..prompt import Section
from .base import Verdict


def _between_sessions(brk: Break) -> bool:
    return brk.scope is Scope.FLEET and brk.section is not Section.TOOLS


class PerUserBeforeStatic:
    """A user's or tenant's fields stand before text that all share."""

    code: ClassVar[str] = "PL301"

    def judge(self, brk: Break) -> Verdict | None:
        if not _between_sessions(brk) or brk.text is None:
            return None
        change = brk.text
        start = change.lines[0].start
        label = change.was[start : change.position]
        if words.USER_FIELD.search(label) or words.ADDRESSED.search(label) or words.USER_FIELD.search(change.heading):
            was, now = change.block
            return Verdict(self.code, "a user's data stands before text that every session shares", was=was, now=now)
        return None


class VariantAtHead:
    """A role's or an agent's text stands before rules that all share."""

    code: ClassVar[str] = "PL305"

    def judge(self, brk: Break) -> Verdict | None:
        if not _between_sessions(brk) or brk.text is None:
            return None
        sentence = brk.text.label.rsplit(". ", 1)[-1]
        if words.ROLE.search(sentence) and len(sentence) < 80:
            was, now = brk.text.block
            return Verdict(self.code, "the text of a role stands before rules that every role shares", was=was, now=now)
        return None


class DynamicBeforeStatic:
    """Text of one item stands before a large part that all items share."""

    code: ClassVar[str] = "PL304"

    def judge(self, brk: Break) -> Verdict | None:
        if not _between_sessions(brk):
            return None
        was, now = brk.text.block if brk.text else (None, None)
        return Verdict(
            self.code, "text that differs stands before a large part that every session shares", was=was, now=now
        )
