"""PL101 to PL107: values that move by themselves, in text that later requests share."""

from __future__ import annotations

import re
from typing import ClassVar

from ..breaks import Break, Scope
from ..grammars import headers, ids, numbers, paths, times, urls, words
from ..grammars.spans import Span, both_at
from ..prompt import Section
from ..severity import Recurrence
from ..text_change import TextChange, embedded_json
from .base import Verdict, is_scalar, once_a_session, values


class SignedUrl:
    """The same resource under another signature or expiry."""

    code: ClassVar[str] = "PL107"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.text is None:
            return None
        found = urls.signed_urls_at(brk.text.was, brk.text.now, brk.text.position)
        if not found:
            return None
        was, now = values(found[:2])
        return Verdict(self.code, f"the URL is signed again ({', '.join(found[2])} changed)", was=was, now=now)


class TransportHeader:
    """A header line that was sent as the head of the system text."""

    code: ClassVar[str] = "PL104"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.text is None or brk.section is not Section.SYSTEM:
            return None
        was_line, now_line = brk.text.lines
        was, now = headers.header_line(was_line.text), headers.header_line(now_line.text)
        at_head = not brk.text.was[: was_line.start].strip() or all(
            headers.header_line(line) for line in brk.text.was[: was_line.start].splitlines() if line.strip()
        )
        if was and now and was[0] == now[0] and at_head:
            return Verdict(
                self.code, f"transport header '{was[0]}' is prompt text and its value changes", was=was[1], now=now[1]
            )
        return None


class Timestamp:
    """A clock value below day precision."""

    code: ClassVar[str] = "PL101"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.text is None:
            return None
        found = times.timestamps_at(brk.text.was, brk.text.now, brk.text.position)
        if not found:
            return None
        was, now = values(found)
        return Verdict(self.code, "a clock value changes in text that later requests share", was=was, now=now)


class Date:
    """A date of day precision."""

    code: ClassVar[str] = "PL102"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.text is None:
            return None
        found = times.dates_at(brk.text.was, brk.text.now, brk.text.position)
        if not found:
            return None
        was, now = values(found)
        message = "a date changes in text that later requests share: one miss for each open session and day"
        return Verdict(self.code, message, Recurrence.NOW_AND_THEN, was=was, now=now)


class VolatileId:
    """An identifier, digest, random token or address."""

    code: ClassVar[str] = "PL103"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.text is None or _is_place(brk.text):
            return None
        found = ids.ids_at(brk.text.was, brk.text.now, brk.text.position)
        if not found or (brk.scope is Scope.FLEET and _names_a_user(brk.text, found)):
            return None
        was, now = values(found)
        return Verdict(
            self.code,
            "an id changes in text that later requests share",
            cap=once_a_session(brk.scope),
            was=was,
            now=now,
        )


def _is_place(change: TextChange) -> bool:
    """A commit or a machine is state of the environment, whatever it is called."""
    return bool(paths.VCS_LABEL.search(change.label) or paths.HOST_LABEL.search(_before_word(change)))


def _before_word(change: TextChange) -> str:
    """What stands on the line before the word that changed."""
    return re.sub(r"[\w.-]+$", "", change.label)


def _names_a_user(change: TextChange, found: tuple[Span, Span]) -> bool:
    """A user's own field, printed under its label, belongs to PL301."""
    return bool(words.USER_FIELD.search(change.was[change.lines[0].start : found[0].start]))


class Counter:
    """A number that runs: tokens, turns, cost, budget."""

    code: ClassVar[str] = "PL105"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.text is None:
            return None
        was_text, now_text, at = brk.text.was, brk.text.now, brk.text.position
        found = both_at(numbers.GAUGE, was_text, now_text, at)
        if not found:
            found = numbers.numbers_at(was_text, now_text, at)
            if not found or not self._counts(brk, found):
                return None
        was, now = values(found)
        return Verdict(self.code, "a running number changes in text that later requests share", was=was, now=now)

    @staticmethod
    def _counts(brk: Break, found: tuple[Span, Span]) -> bool:
        assert brk.text is not None
        line = brk.text.lines[0]
        if numbers.counts(line.text, found[0].start - line.start, found[0].end - line.start):
            return True
        if _env_label(brk.text):
            return False
        first, second = (numbers.value_of(span.text) for span in found)
        moves = first is not None and second is not None and first != second
        return brk.scope is Scope.LINEAGE and moves and is_scalar(brk, found)


class EnvironmentSnapshot:
    """State of a machine, a working copy or a device, printed again."""

    code: ClassVar[str] = "PL106"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.text is None or brk.section is Section.TOOLS:
            return None
        change = brk.text
        labelled = _env_label(change)
        if brk.scope is Scope.FLEET and not _strict_label(change):
            return None
        piece = _piece(change)
        if not labelled and not paths.is_pathlike(piece[0] + "\n" + piece[1]):
            return None
        grows = _list_grows(change)
        recurrence = Recurrence.NOW_AND_THEN if grows or brk.scope is Scope.FLEET else Recurrence.EACH_REQUEST
        what = "a list of things at hand grows" if grows else "a snapshot of the environment is rendered again"
        return Verdict(self.code, what, recurrence, was=piece[0], now=piece[1])


def _env_label(change: TextChange) -> bool:
    return bool(
        paths.ENVIRONMENT_LABEL.search(paths.label_of(change.lines[0].text, change.position - change.lines[0].start))
    ) or bool(paths.ENVIRONMENT_LABEL.search(change.heading))


def _strict_label(change: TextChange) -> bool:
    """A label right before the value, as in `cwd: /srv/a`."""
    before = change.label.rstrip()
    head = before.split(":")[0] if ":" in before else before.split("=")[0] if "=" in before else ""
    return bool(head) and bool(paths.ENVIRONMENT_LABEL.search(head)) and len(head) < 60


def _piece(change: TextChange) -> tuple[str, str]:
    """The changed values, widened to the words around them."""
    was, now = change.hunk
    start = max(change.was.rfind(" ", 0, was.start), change.was.rfind("\n", 0, was.start)) + 1
    return _word(change.was, start, was.end), _word(change.now, start, now.end)


def _word(text: str, start: int, end: int) -> str:
    while end < len(text) and not text[end].isspace():
        end += 1
    return text[start:end]


def _list_grows(change: TextChange) -> bool:
    """True when the new value is the old list with entries added at its end."""
    was, now = embedded_json(change.was, change.position), embedded_json(change.now, change.position)
    if was and now and isinstance(was[1], list) and isinstance(now[1], list):
        return len(now[1]) > len(was[1]) and now[1][: len(was[1])] == was[1]
    start = change.lines[0].start
    return (
        _is_line_list(change.was[start : change.position])
        and change.inserted is not None
        and change.inserted.lstrip().startswith(("-", "*", "•"))
    )


def _is_line_list(line: str) -> bool:
    return line == "" or line.lstrip().startswith(("-", "*", "•"))
