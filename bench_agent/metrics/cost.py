"""What the tokens cost: by a price list, or by what the machine costs an hour."""

from __future__ import annotations

import math

import msgspec

from ..errors import BenchError


class Price(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Money for a million tokens, in any one currency; ``machine_hour``: money for an hour of the machine instead."""

    input: float = 0.0
    cached: float | None = None
    output: float = 0.0
    machine_hour: float | None = None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Money in the price's currency. None: nothing to divide by."""

    total: float
    per_task: float | None
    per_million_output_tokens: float | None
    per_million_tokens: float | None
    by: str


def parse_price(text: str) -> Price:
    """``in=0.5,cached=0.05,out=1.5``. Raises BenchError."""
    names = {"in": "input", "cached": "cached", "out": "output"}
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, written = part.partition("=")
        field, amount = names.get(name.strip()), _money(written)
        if field is None or amount is None:
            raise BenchError(f"{part.strip()!r} is no price", field="price", remedy="write in=0.5,cached=0.05,out=1.5")
        if field in found:
            raise BenchError(f"{name.strip()!r} has two prices", field="price", remedy="leave one out")
        found[field] = amount
    return Price(**found)


def _money(text: str) -> float | None:
    try:
        amount = float(text)
    except ValueError:
        return None
    return amount if math.isfinite(amount) and amount >= 0 else None


def cost_of(price: Price, *, wall_s: float, tasks: int, prompt: int, cached: int, output: int) -> Cost:
    """The cost of a run of ``wall_s`` seconds."""
    if price.machine_hour is not None:
        total, by = price.machine_hour * wall_s / 3600, "machine time"
    else:
        cached_price = price.input if price.cached is None else price.cached
        total = ((prompt - cached) * price.input + cached * cached_price + output * price.output) / 1e6
        by = "price list"
    return Cost(
        total=total,
        per_task=total / tasks if tasks else None,
        per_million_output_tokens=total / output * 1e6 if output else None,
        per_million_tokens=total / (prompt + output) * 1e6 if prompt + output else None,
        by=by,
    )
