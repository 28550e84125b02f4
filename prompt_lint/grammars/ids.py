"""Identifiers: UUIDs, ULIDs, digests, random tokens, memory addresses."""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise

from .spans import Span, both_at

_LONGEST = 140
UUID = re.compile(r"\b[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}\b")
ULID = re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b")
HEX = re.compile(r"\b(?:0x)?[0-9a-fA-F]{6,128}\b")
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,16}\b")
TOKEN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_+=-]|[/.](?=[A-Za-z0-9])){4,127}")
SHORT = re.compile(r"[A-Za-z0-9]{4,64}")
LABELLED = re.compile(
    r"(?:\b|_|-)(?:id|uuid|guid|nonce|trace|span|session|request|req|run|thread|correlation|"
    r"conversation|job|build|hash|digest|token|key|seed|salt|pid"
    r"|sitzung|anfrage|sesión|séance|requête|会话|请求|セッション|сессия|запрос)(?:[ _-]?(?:id|no|nr|number|"
    r"key|hash|kennung))?\b\W{0,4}[\w-]*$",
    re.IGNORECASE,
)

_SLUG = re.compile(r"[a-z]{2,}(?:[-_][a-z]{2,}){1,4}")  # brave-otter, calm_hedge_walks
_NAMED = re.compile(r"\b(?:session|run|trace|request|conversation|thread)(?:[ _-]?(?:id|name))?\W{1,4}$", re.IGNORECASE)


def entropy(text: str) -> float:
    """Shannon entropy of the characters of a text, in bits a character."""
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())


def looks_random(token: str) -> bool:
    """True for a token that no word list would hold: letters and digits mixed, many different characters."""
    body = token.rsplit("_", 1)[-1] if "_" in token else token
    body = body.rsplit("-", 1)[-1] if len(body.rsplit("-", 1)[-1]) >= 6 else body
    digits = sum(c.isdigit() for c in body)
    letters = sum(c.isalpha() for c in body)
    if len(body) < 6:
        return False
    if digits and letters:
        switches = sum(a.isdigit() != b.isdigit() for a, b in pairwise(body))
        return switches >= 2 or (len(body) >= 8 and entropy(body) > 2.5)
    upper = sum(c.isupper() for c in body[1:])
    return len(body) >= 10 and 2 <= upper < letters - 1 and entropy(body) > 3.0


def ids_at(was: str, now: str, position: int) -> tuple[Span, Span] | None:
    """Two identifiers in the slot where the texts part, or None."""
    for pattern in (UUID, ULID, ADDRESS):
        found = both_at(pattern, was, now, position)
        if found:
            return found
    return _hex_at(was, now, position) or _tokens_at(was, now, position) or _labelled_at(was, now, position)


def _hex_at(was: str, now: str, position: int) -> tuple[Span, Span] | None:
    found = both_at(HEX, was, now, position, _LONGEST)
    if not found or abs(len(found[0].text) - len(found[1].text)) > 1:
        return None
    mixed = [any(c.isdigit() for c in s.text) and any(c.isalpha() for c in s.text) for s in found]
    return found if any(mixed) or (len(found[0].text) >= 12 and entropy(found[0].text) > 2.5) else None


def _tokens_at(was: str, now: str, position: int) -> tuple[Span, Span] | None:
    for pattern in (TOKEN, SHORT):
        found = both_at(pattern, was, now, position, _LONGEST)
        if found and looks_random(found[0].text) and looks_random(found[1].text):
            return found
    return None


def _labelled_at(was: str, now: str, position: int) -> tuple[Span, Span] | None:
    """A value of any shape right after a word that says it is an id, or a name made of drawn words."""
    found = both_at(re.compile(r"[\w-]{3,64}"), was, now, position)
    if not found:
        return None
    before = was[max(0, found[0].start - 40) : found[0].start]
    if all(_SLUG.fullmatch(span.text) for span in found) and _NAMED.search(before):
        return found
    digits = all(any(c.isdigit() for c in span.text) for span in found)
    return found if digits and LABELLED.search(before) else None
