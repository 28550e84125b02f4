"""Times of records to seconds since the epoch."""

from __future__ import annotations

import datetime
from typing import Any


def seconds(value: Any) -> float | None:
    """Read an ISO time or a number of seconds, milliseconds, microseconds or nanoseconds; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return _scaled(float(value))
    if isinstance(value, str):
        if value.replace(".", "", 1).isdigit():
            return _scaled(float(value))
        try:
            moment = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
    return None


def _scaled(value: float) -> float:
    for limit, factor in ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3)):
        if value > limit:
            return value / factor
    return value
