"""Compactions: the conversation is cut down or summed up. They are no break; too many of them are PL407."""

from __future__ import annotations

from ..breaks import Break, Scope
from ..grammars import words
from ..prompt import Section
from ..text_change import TextChange


def is_compaction(brk: Break) -> bool:
    """The conversation was cut down at once, to a summary or by many of its oldest messages; or summed up anew."""
    return _is_cut_down(brk) or _is_new_summary(brk)


def _is_cut_down(brk: Break) -> bool:
    if brk.scope is Scope.FLEET or brk.section is not Section.MESSAGES:
        return False
    head = len(brk.previous.units) - len(brk.previous.conversation)
    if brk.place.unit - head > 2 or len(brk.now_tail) >= len(brk.was_tail):
        return False
    was, now = sum(u.size for u in brk.was_tail), sum(u.size for u in brk.now_tail)
    return now < 0.75 * was


def _is_new_summary(brk: Break) -> bool:
    """The summary at the head of the conversation was written anew."""
    was, now = brk.was_unit, brk.now_unit
    if was is None or now is None or brk.scope is Scope.FLEET or brk.section is not Section.MESSAGES:
        return False
    head = len(brk.previous.units) - len(brk.previous.conversation)
    begins = all(words.SUMMARY.search(unit.text[:200]) for unit in (was, now))
    return begins and brk.place.unit - head <= 1 and brk.text is not None and _is_rewritten(brk.text)


def _is_rewritten(change: TextChange) -> bool:
    """More than a value or an added end: a good part of the words are others."""
    was, now = set(change.was.split()), set(change.now.split())
    return not change.only_appends and len(was & now) < 0.8 * min(len(was), len(now))
