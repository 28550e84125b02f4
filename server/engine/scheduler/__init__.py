"""Which tokens of which turns the next step computes. ``docs/scheduling.md`` says by what rules."""

from __future__ import annotations

from .plan import Chunk, StepPlan
from .scheduler import Scheduler

__all__ = ["Chunk", "Scheduler", "StepPlan"]
