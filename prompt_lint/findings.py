"""What the linter says: findings, where they are, what they cost."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class Severity(enum.IntEnum):
    """How much a finding matters; ordered."""

    INFO = 0
    WARNING = 1
    ERROR = 2

    @property
    def word(self) -> str:
        """The severity as it is written in reports."""
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Severity:
        """Read a severity back. Raises: KeyError for an unknown word."""
        return cls[word.upper()]


class Location(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place: a line of a file, or a character of a leaf of a request."""

    file: str
    line: int | None = None
    column: int | None = None
    request: int | None = None
    path: str | None = None
    char: int | None = None


class Cost(msgspec.Struct, frozen=True):
    """What one break costs. `tokens` are prompt tokens computed again, `share` their part of the prompt."""

    tokens: int = 0
    share: float = 0.0
    milliseconds: float | None = None
    money: float | None = None


class Edit(msgspec.Struct, frozen=True):
    """Replace the characters [start, end) of a source file."""

    start: int
    end: int
    text: str
    safe: bool = True


class Finding(msgspec.Struct, frozen=True):
    """One thing that breaks the prefix cache. `pair` are the indices of the two requests it was seen between."""

    rule: str
    name: str
    severity: Severity
    message: str
    location: Location
    fix: str
    pair: tuple[int, int] | None = None
    cost: Cost = Cost()
    scope: str = "session"
    was: str | None = None
    now: str | None = None
    cause: str = ""
    edits: tuple[Edit, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The documented JSON form."""
        location = msgspec.to_builtins(self.location)
        return {
            "rule": self.rule,
            "name": self.name,
            "severity": self.severity.word,
            "message": self.message,
            "location": location,
            "pair": list(self.pair) if self.pair else None,
            "lost_tokens": self.cost.tokens,
            "lost_share": round(self.cost.share, 4),
            "lost_ms": None if self.cost.milliseconds is None else round(self.cost.milliseconds, 1),
            "lost_cost": None if self.cost.money is None else round(self.cost.money, 6),
            "scope": self.scope,
            "fix": self.fix,
        }


def redacted(text: str) -> str:
    """The shape of a value without the value: digits become 9, letters a or A, the rest stays."""
    return "".join("9" if c.isdigit() else ("A" if c.isupper() else "a") if c.isalpha() else c for c in text)
