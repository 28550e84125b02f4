"""How a text changed at the first place where two versions part."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any

from .divergence import common_length
from .grammars.spans import Span, line_around

_MAX_DIFF_LINES = 600
_LONG_HUNK, _NEAR, _SAMPLE = 300, 96, 40
_HEADING = re.compile(
    r"^\s*(?:#{1,6}\s+\S.*|<[\w:.-]+[^>]*>|\[[\w :.-]+\]|\*\*.+\*\*:?|={2,}.*|-{2,}\s*\w.*|[^\n]{1,80}[:：])\s*$"
)
_QUOTES = str.maketrans(
    {
        "‘": "'",
        "’": "'",
        "‚": "'",
        "“": '"',
        "”": '"',
        "„": '"',
        "«": '"',
        "»": '"',
        "–": "-",
        "—": "-",
        "‐": "-",
        "‑": "-",
        "−": "-",
    }
)
_FORMAT_CHARACTERS = re.compile(
    "[" + "".join(re.escape(chr(c)) for c in range(0x10000) if unicodedata.category(chr(c)) == "Cf") + "]"
)
_BLOB = re.compile(r"[A-Za-z0-9+/_=-]{256,}")
_BLOB_REACH = 4096
_BLANK = re.compile(r"[ \t\r\n\f\v]+")


@dataclass(frozen=True)
class TextChange:
    """Two versions of one text. `position` is the first character that differs."""

    was: str
    now: str
    position: int

    @cached_property
    def hunk(self) -> tuple[Span, Span]:
        """The first changed region in both versions, up to the place where they agree again."""
        was_end, now_end = self._ends
        ends = self._first_line_hunk(was_end, now_end) or self._first_resumption(was_end, now_end)
        if ends:
            was_end, now_end = ends
        start = self.position
        return Span(start, was_end, self.was[start:was_end]), Span(start, now_end, self.now[start:now_end])

    @cached_property
    def block(self) -> tuple[str, str]:
        """The hunk widened to whole lines."""
        was, now = self.hunk
        return _whole_lines(self.was, was), _whole_lines(self.now, now)

    @cached_property
    def region(self) -> tuple[str, str]:
        """Everything between the common beginning and the common end, widened to whole lines."""
        was_end, now_end = self._ends
        start = self.position
        return (
            _whole_lines(self.was, Span(start, was_end, "")),
            _whole_lines(self.now, Span(start, now_end, "")),
        )

    @property
    def middles(self) -> tuple[str, str]:
        """Everything between the common beginning and the common end."""
        was_end, now_end = self._ends
        return self.was[self.position : was_end], self.now[self.position : now_end]

    @cached_property
    def lines(self) -> tuple[Span, Span]:
        """The line in each version that holds the first changed character."""
        return line_around(self.was, self.position), line_around(self.now, self.position)

    @property
    def shared_behind(self) -> int:
        """Characters of `shared_text`."""
        return len(self.shared_text)

    @cached_property
    def shared_text(self) -> str:
        """What both versions hold behind the first hunk: what follows it alike, equal lines, the common end."""
        was_end, now_end = self._ends
        was, now = self.hunk
        if was.end >= was_end:
            return self.was[was_end:]
        run = self._run_behind
        lines = set(self.now[now.end + run : now_end].splitlines())
        middle = self.was[was.end + run : was_end].splitlines(keepends=True)
        kept = "".join(line for line in middle if line.rstrip("\r\n") in lines)
        return self.was[was.end : was.end + run] + kept + self.was[max(was_end, was.end + run) :]

    @cached_property
    def _run_behind(self) -> int:
        """Characters that follow the first hunk alike in both versions."""
        was, now = self.hunk
        return common_length(self.was[was.end :], self.now[now.end :])

    @property
    def undone(self) -> str:
        """What the later version would share beyond the place had the first hunk not changed."""
        return self.was[self.position : self.hunk[0].end + self._run_behind]

    @cached_property
    def in_blob(self) -> bool:
        """True when the texts part inside encoded bytes: an image, a file, encrypted reasoning."""
        return _in_blob(self.was, self.position) and _in_blob(self.now, self.position)

    @property
    def label(self) -> str:
        """What stands before the change on its line."""
        line = self.lines[0]
        return self.was[line.start : self.position]

    @cached_property
    def heading(self) -> str:
        """The nearest heading, tag or `label:` line above the change, or an empty string."""
        above = self.was[: self.lines[0].start].splitlines()
        for line in reversed(above[-40:]):
            if _HEADING.match(line):
                return line.strip()
        return ""

    @property
    def context(self) -> str:
        """Heading and label together: the words under which the value is printed."""
        return f"{self.heading}\n{self.label}"

    @property
    def only_appends(self) -> bool:
        """True when the new version is the old one with text added at its end."""
        return self.position == len(self.was)

    @property
    def inserted(self) -> str | None:
        """The text that was put in, when nothing was taken away."""
        was_end, now_end = self._ends
        return self.now[self.position : now_end] if was_end == self.position else None

    @property
    def removed(self) -> str | None:
        """The text that was taken away, when nothing was put in."""
        was_end, now_end = self._ends
        return self.was[self.position : was_end] if now_end == self.position else None

    @cached_property
    def _ends(self) -> tuple[int, int]:
        """Ends of the differing middles once the common end is cut off."""
        limit = min(len(self.was), len(self.now)) - self.position
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.was[len(self.was) - middle :] == self.now[len(self.now) - middle :]:
                low = middle
            else:
                high = middle - 1
        return len(self.was) - low, len(self.now) - low

    def _first_resumption(self, was_end: int, now_end: int) -> tuple[int, int] | None:
        """Where both versions go on alike soon behind the change, inside a long line."""
        at = self.position
        if min(was_end, now_end) - at < _LONG_HUNK:
            return None
        for ahead in range(_NEAR):
            sample = self.was[at + ahead : at + ahead + _SAMPLE]
            found = self.now.find(sample, at, at + _NEAR + _SAMPLE)
            if found >= 0 and len(sample) == _SAMPLE:
                return at + ahead, found
        return None

    def _first_line_hunk(self, was_end: int, now_end: int) -> tuple[int, int] | None:
        start = self.was.rfind("\n", 0, self.position) + 1
        was = self.was[start:was_end].splitlines(keepends=True)
        now = self.now[start:now_end].splitlines(keepends=True)
        if len(was) < 3 and len(now) < 3:
            return None
        matcher = SequenceMatcher(None, was[:_MAX_DIFF_LINES], now[:_MAX_DIFF_LINES], autojunk=False)
        blocks = [m for m in matcher.get_matching_blocks() if m.size and sum(map(len, was[m.a : m.a + m.size])) >= 12]
        if not blocks or blocks[0].a == 0 or blocks[0].b == 0:
            return None
        first = blocks[0]
        return start + sum(map(len, was[: first.a])), start + sum(map(len, now[: first.b]))


def _in_blob(text: str, position: int) -> bool:
    start = max(0, position - _BLOB_REACH)
    found = _BLOB.finditer(text, start, position + _BLOB_REACH)
    return any(run.start() <= position <= run.end() for run in found)


def _whole_lines(text: str, span: Span) -> str:
    start = text.rfind("\n", 0, span.start) + 1
    if span.end > start and text[span.end - 1 : span.end] == "\n":
        return text[start : span.end]
    end = text.find("\n", max(span.end, start))
    return text[start:] if end < 0 else text[start:end]


def differs_in_white_space_only(was: str, now: str) -> bool:
    """True when two different texts are equal once runs of white space count as nothing."""
    was, now = TextChange(was, now, common_length(was, now)).middles
    return was != now and _BLANK.sub("", was) == _BLANK.sub("", now)


def normal_form(text: str) -> str:
    """NFKC, format characters removed, typographic quotes and dashes made plain."""
    return _FORMAT_CHARACTERS.sub("", unicodedata.normalize("NFKC", text.translate(_QUOTES)))


def differs_in_unicode_form_only(was: str, now: str) -> bool:
    """True when two different texts look alike: same text in another Unicode form."""
    if was.isascii() and now.isascii():
        return False
    return was != now and _BLANK.sub("", normal_form(was)) == _BLANK.sub("", normal_form(now))


_BULLET = re.compile(
    r"^\s*(?:[-*•+]|\d+[.):]|\(\d+\)|[a-z][.)])?\s*(?:(?:example|item|nr|no)\.?\s*\d+\s*[:.)]\s*)?", re.IGNORECASE
)


def _items(text: str) -> list[str]:
    return [_BULLET.sub("", line).strip() for line in text.splitlines() if line.strip()]


def is_reordered(was: str, now: str) -> bool:
    """True when both texts hold the same lines (or the same comma-separated items) in another order."""
    a, b = _items(was), _items(now)
    if len(a) >= 2 and a != b and Counter(a) == Counter(b):
        return True
    return len(a) == len(b) == 1 and _inline_reordered(a[0], b[0])


def _inline_reordered(was: str, now: str) -> bool:
    body = re.compile(r"[,;|]\s*|\s+(?:and|und|et|y|e|или|и)\s+")
    a, b = ([p.strip(" .\"'[](){}:") for p in body.split(s.split(":", 1)[-1])] for s in (was, now))
    return len(a) >= 2 and a != b and Counter(a) == Counter(b)


def embedded_json(text: str, position: int) -> tuple[int, Any] | None:
    """(start, value) of the outermost JSON object or array in `text` that covers `position`."""
    decoder = json.JSONDecoder()
    found = None
    for match in list(re.finditer(r"[\[{]", text[max(0, position - 4000) : position + 1]))[-200:]:
        start = max(0, position - 4000) + match.start()
        try:
            value, end = decoder.raw_decode(text, start)
        except ValueError:
            continue
        if end > position and isinstance(value, (dict, list)):
            found = (start, value)
            break
    return found


def key_order(value: Any) -> Any:
    """The keys of a JSON value in the order in which they stand, without the scalars."""
    if isinstance(value, dict):
        return [(k, key_order(v)) for k, v in value.items()]
    if isinstance(value, list):
        return [key_order(v) for v in value]
    return None
