"""Matching a grammar at the place where two texts part."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_REACH = 72


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a text."""

    start: int
    end: int
    text: str


def match_at(pattern: re.Pattern[str], text: str, position: int, reach: int = _REACH) -> Span | None:
    """The match of `pattern` that covers `position` (or ends right there), searched on the text around it."""
    start = max(0, position - reach)
    window = _plain_digits(text[start : position + reach])
    here = position - start
    touching = None
    for match in pattern.finditer(window):
        if match.start() <= here < match.end():
            return _span(text, start + match.start(), start + match.end())
        if match.end() == here:
            touching = _span(text, start + match.start(), start + match.end())
        if match.start() > here:
            break
    return touching


def _span(text: str, start: int, end: int) -> Span:
    return Span(start, end, text[start:end])


def _plain_digits(text: str) -> str:
    """Digits of every script as 0 to 9; the length stays."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.digit(c)) if c.isdecimal() and not c.isascii() else c for c in text)


def both_at(
    pattern: re.Pattern[str], was: str, now: str, position: int, reach: int = _REACH
) -> tuple[Span, Span] | None:
    """Matches in both texts that cover the place where they part and have two values."""
    a, b = match_at(pattern, was, position, reach), match_at(pattern, now, position, reach)
    if a and b and a.text != b.text and a.start == b.start:
        return a, b
    return None


def line_around(text: str, position: int) -> Span:
    """The line that holds `position`, without its newline."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    end = len(text) if end < 0 else end
    return Span(start, end, text[start:end])
