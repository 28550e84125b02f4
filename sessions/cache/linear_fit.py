"""Non-negative linear models that learn as they are used: exponentially weighted least squares.

Seconds are modelled as ``sum(coefficient * feature)``, all coefficients at least 0 (no work takes negative time).
Errors count relative to the prediction, so that a fast and a slow case weigh alike. What was calibrated acts as a prior
that never fades entirely: where recent observations all look alike, the other coefficients stay what they were.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


class LinearFit:
    """Coefficients that follow observations. Not safe for threads.

    ``memory``: how many recent observations count. ``most_surprise``: an observation further from the prediction than
    by this factor counts as if it were at this factor, so that a stall moves the model little and a lasting change
    moves it all the same. ``widest``: no coefficient's contribution leaves the calibrated one by more than this factor
    for good: predictions stay within it.
    """

    def __init__(
        self,
        calibrated: Sequence[float],
        memory: float = 30.0,
        most_surprise: float = 3.0,
        widest: float = 20.0,
    ) -> None:
        self._calibrated: Vector = np.maximum(np.asarray(calibrated, dtype=np.float64), 0.0)
        self._coefficients: Vector = self._calibrated.copy()
        self._kept = 1.0 - 1.0 / memory
        self._most_surprise = most_surprise
        self._widest = widest
        size = len(self._calibrated)
        self._moments: Vector = np.zeros((size, size))  # of the features, each divided by the predicted seconds
        self._targets: Vector = np.zeros(size)

    @property
    def coefficients(self) -> tuple[float, ...]:
        return tuple(float(value) for value in self._coefficients)

    def predict(self, features: Sequence[float] | Vector) -> float:
        """Seconds for ``features``, within ``widest`` of what the calibration says."""
        x = np.asarray(features, dtype=np.float64)
        calibrated = float(x @ self._calibrated)
        learnt = float(x @ self._coefficients)
        return min(max(learnt, calibrated / self._widest), calibrated * self._widest)

    def predict_many(self, features: Vector) -> Vector:
        """``predict`` for each row: [n, num_features] -> [n]."""
        calibrated = features @ self._calibrated
        learnt: Vector = features @ self._coefficients
        bounded: Vector = np.clip(learnt, calibrated / self._widest, calibrated * self._widest)
        return bounded

    def observe(self, features: Sequence[float], seconds: float) -> None:
        """Learn that ``features`` took ``seconds``. Values that no clock can show are ignored."""
        expected = self.predict(features)
        if not math.isfinite(seconds) or seconds <= 0 or not math.isfinite(expected) or expected <= 0:
            return
        seconds = min(max(seconds, expected / self._most_surprise), expected * self._most_surprise)
        x = np.asarray(features, dtype=np.float64) / expected
        self._moments = self._moments * self._kept + np.outer(x, x)
        self._targets = self._targets * self._kept + x * (seconds / expected)
        self._coefficients = self._solve()

    def _solve(self) -> Vector:
        """The coefficients of least weighted error, with a pull to the calibrated ones worth one observation."""
        scale = np.where(self._calibrated > 0, self._calibrated, np.max(self._calibrated, initial=1e-12) * 1e-6)
        moments = self._moments * np.outer(scale, scale)  # in units of the calibrated coefficients
        targets = self._targets * scale
        pull = 0.01 * (1.0 + np.trace(moments)) / len(scale)
        moments = moments + pull * np.eye(len(scale))
        targets = targets + pull * (self._calibrated / scale)
        solution: Vector = _non_negative(moments, targets) * scale
        return solution


def fit(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[float, ...]:
    """Coefficients that fit measurements, each error relative to the measured time.

    Raises:
        ValueError: there are no measurements, or some took no time.
    """
    if not seconds or min(seconds) <= 0:
        raise ValueError("a calibration needs measurements that took time")
    x = np.asarray(features, dtype=np.float64) / np.asarray(seconds)[:, None]
    scale = np.where(np.abs(x).max(axis=0) > 0, np.abs(x).max(axis=0), 1.0)
    x = x / scale
    moments = x.T @ x + 1e-9 * np.eye(x.shape[1])
    solution = _non_negative(moments, x.sum(axis=0)) / scale
    return tuple(float(value) for value in solution)


def _non_negative(moments: Vector, targets: Vector) -> Vector:
    """Minimise ``c @ moments @ c / 2 - targets @ c`` over ``c >= 0``: try each set of coefficients that are not 0."""
    size = len(targets)
    best: Vector = np.zeros(size)
    best_value = 0.0
    for used in itertools.product((True, False), repeat=size):
        mask = np.asarray(used)
        if not mask.any():
            continue
        part = np.linalg.solve(moments[np.ix_(mask, mask)], targets[mask])
        if (part < 0).any():
            continue
        candidate = np.zeros(size)
        candidate[mask] = part
        value = float(candidate @ moments @ candidate / 2 - targets @ candidate)
        if value < best_value:
            best, best_value = candidate, value
    return best
