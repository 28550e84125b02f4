"""Percentiles with confidence intervals.

Over two repeats or more: the mean of the repeats' percentiles, with Student's t interval of 95%. Of one repeat: its
percentile, with the 95% interval of 400 bootstrap samples of the values, drawn with a fixed seed. Of more than 5,000
values samples of 5,000 are drawn, and the interval is narrowed by the root of how many times more there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing

_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_SAMPLES, _MOST = 400, 5000
_Values = np.typing.NDArray[np.float64]


class Estimate(msgspec.Struct, frozen=True):
    """A number and its 95% interval; ``low`` and ``high`` are None where nothing can be said of it."""

    value: float
    low: float | None = None
    high: float | None = None


class Percentiles(msgspec.Struct, frozen=True):
    """Of ``count`` values in all repeats, in seconds unless said. ``interval``: how the intervals were made."""

    count: int
    mean: Estimate
    p50: Estimate
    p90: Estimate
    p99: Estimate
    interval: str


def percentiles(repeats: Sequence[Sequence[float]]) -> Percentiles | None:
    """Of the values of each repeat; None when there are none."""
    filled = [np.asarray(values, dtype=np.float64) for values in repeats if len(values)]
    if not filled:
        return None
    p50, p90, p99 = (_estimate(filled, partial(np.percentile, q=rank, axis=-1)) for rank in (50, 90, 99))
    return Percentiles(
        count=sum(len(values) for values in filled),
        mean=_estimate(filled, partial(np.mean, axis=-1)),
        p50=p50,
        p90=p90,
        p99=p99,
        interval=f"t over {len(filled)} repeats" if len(filled) > 1 else "bootstrap over turns",
    )


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean of one number a repeat."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    reach = _t(len(values) - 1) * deviation / math.sqrt(len(values))
    return Estimate(mean, mean - reach, mean + reach)


def _estimate(repeats: Sequence[_Values], statistic: Callable[[_Values], Any]) -> Estimate:
    if len(repeats) > 1:
        return mean_of([float(statistic(values)) for values in repeats])
    values = repeats[0]
    if len(values) < 2:
        return Estimate(float(statistic(values)))
    few = values if len(values) <= _MOST else np.random.default_rng(1).choice(values, _MOST, replace=False)
    drawn = np.random.default_rng(0).choice(few, (_SAMPLES, len(few)))
    value, centre = float(statistic(values)), float(statistic(few))
    narrower = math.sqrt(len(few) / len(values))  # an interval of more values, from samples of fewer
    low, high = (value + (float(bound) - centre) * narrower for bound in np.percentile(statistic(drawn), [2.5, 97.5]))
    return Estimate(value, low, high)


def _t(freedom: int) -> float:
    return _T_95[freedom - 1] if freedom <= len(_T_95) else 1.96 + 2.4 / freedom
