"""The errors of the harness.

BenchError (a SessileError)
├── TraceError      a trace file that cannot be read: file, line, what is wrong
├── TargetError     a server that cannot be started, reached or asked
└── CompareError    results that cannot be set side by side
"""

from __future__ import annotations

from pathlib import Path

from ..sessions.errors import SessileError


class BenchError(SessileError):
    """Base of what the harness tells its user."""


class TraceError(BenchError):
    """A trace cannot be read. ``line`` counts from 1; 0 when the fault is not one of a line."""

    def __init__(self, path: Path, line: int, reason: str, *, remedy: str | None = None) -> None:
        where = f"{path}:{line}" if line else str(path)
        super().__init__(f"{where}: {reason}", field="workload", remedy=remedy)
        self.path = path
        self.line = line
        self.reason = reason


class TargetError(BenchError):
    """A server cannot be started, reached or asked."""


class CompareError(BenchError):
    """Results that cannot be set side by side."""
