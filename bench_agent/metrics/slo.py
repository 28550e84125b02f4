"""Bounds that make a turn a good one: ``ttft=500ms,itl=50ms``."""

from __future__ import annotations

import math
import re

import msgspec

from ..errors import BenchError
from .records import TurnRecord, TurnStatus

_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}
_BOUND = re.compile(r"(ttft|itl|tpot|e2e)\s*=\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*(us|µs|μs|ms|s|)")


class Slo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds; None: no bound. ``itl`` bounds the 99th percentile of a turn's own gaps between pieces."""

    ttft: float | None = None
    itl: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def met_by(self, turn: TurnRecord) -> bool:
        """Whether a turn is a good one. A turn that failed is none; one without a piece of an answer has no TTFT."""
        if turn.status is not TurnStatus.OK:
            return False
        gaps = sorted(turn.gaps_s)
        worst = gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))] if gaps else 0.0
        ttft = math.inf if turn.ttft_s is None else turn.ttft_s
        seen = ((self.ttft, ttft), (self.itl, worst), (self.tpot, turn.tpot_s), (self.e2e, turn.e2e_s))
        return all(bound is None or value is None or value <= bound for bound, value in seen)

    def __str__(self) -> str:
        bounds = msgspec.structs.asdict(self).items()
        return ", ".join(f"{name} ≤ {bound * 1000:g} ms" for name, bound in bounds if bound is not None)


def parse_slo(text: str) -> Slo:
    """Raises BenchError for what is none."""
    bounds: dict[str, float] = {}
    for part in text.lower().split(","):
        found = _BOUND.fullmatch(part.strip())
        if found is None or float(found[2]) == 0:
            raise BenchError(
                f"{part.strip()!r} is not a bound", field="slo", remedy="write ttft=500ms,itl=50ms (or tpot, e2e)"
            )
        if found[1] in bounds:
            raise BenchError(f"{found[1]} has two bounds", field="slo", remedy="leave one out")
        bounds[found[1]] = float(found[2]) * _UNITS[found[3]]
    return Slo(**bounds)
