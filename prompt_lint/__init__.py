"""prompt-lint: finds what breaks the prefix cache in recorded traffic, in code and in chat templates."""

from __future__ import annotations

from .diagnosis import diagnose
from .engine import TraceLinter, TraceOptions
from .findings import Finding, Location, Severity

__all__ = ["Finding", "Location", "Severity", "TraceLinter", "TraceOptions", "diagnose"]
