"""What a check found."""

from __future__ import annotations

import enum

import msgspec


class Health(enum.StrEnum):
    """How good a finding is."""

    OK = "ok"
    WARNING = "warning"  # the server runs, less well than it could
    BROKEN = "broken"  # the server cannot start, or not as configured


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report. ``remedy`` says what to do where something is wrong."""

    topic: str
    found: str
    health: Health = Health.OK
    remedy: str | None = None
