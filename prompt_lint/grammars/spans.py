"""Matching a grammar at the place where two texts part."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_REACH = 72
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")


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


def is_near(sign: re.Pattern[str], text: str, position: int, reach: int = _REACH) -> bool:
    """Whether ``sign`` stands in what ``match_at`` searches. Asked first where a grammar costs much to search for."""
    return sign.search(text, max(0, position - reach), position + reach) is not None


def _span(text: str, start: int, end: int) -> Span:
    return Span(start, end, text[start:end])


def _plain_digits(text: str) -> str:
    """Digits of every script as 0 to 9; the length stays."""
    if text.isascii():
        return text
    return _OTHER_DIGIT.sub(lambda found: str(unicodedata.digit(found.group())), text)


def both_at(
    pattern: re.Pattern[str], was: str, now: str, position: int, reach: int = _REACH
) -> tuple[Span, Span] | None:
    """Matches in both texts that cover the place where they part and have two values."""
    a = match_at(pattern, was, position, reach)
    b = match_at(pattern, now, position, reach) if a else None
    if a and b and a.text != b.text and a.start == b.start:
        return a, b
    return None


def line_around(text: str, position: int) -> Span:
    """The line that holds `position`, without its newline."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    end = len(text) if end < 0 else end
    return Span(start, end, text[start:end])
