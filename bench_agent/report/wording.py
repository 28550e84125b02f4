"""Numbers and names as people read them."""

from __future__ import annotations

from ..metrics.percentile import Estimate

WIRES = {"http": "HTTP", "grpc": "gRPC"}  # the drivers' names of protocols, and people's


def milliseconds(found: Estimate | None) -> str:
    """``12.3 ms (11.9–12.8)``."""
    return _with_interval(found, 1000, "ms")


def seconds(found: Estimate | None) -> str:
    """``1.23 s (1.20–1.26)``."""
    return _with_interval(found, 1, "s")


def rate(found: Estimate | None, unit: str) -> str:
    """``123 tok/s (120–126)``."""
    return _with_interval(found, 1, unit)


def share(value: float | None) -> str:
    """``93.1%``, or a dash."""
    return "–" if value is None else f"{value:.1%}"


def count(value: int | None) -> str:
    """``12,345``, or a dash."""
    return "–" if value is None else f"{value:,}"


def size(value: float) -> str:
    """Bytes as MB or GB."""
    return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"


def _with_interval(found: Estimate | None, factor: float, unit: str) -> str:
    if found is None:
        return "–"
    text = f"{_number(found.value * factor)} {unit}"
    if found.low is None or found.high is None:
        return text
    return f"{text} ({_number(max(0.0, found.low * factor))}–{_number(found.high * factor)})"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
