"""How long the model takes for a step, by the number of its rows."""

from __future__ import annotations

import bisect
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

_ROWS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512)
_FAST, _SLOW = 0.2, 0.05
_OUTLIER = 3.0  # times what was expected: somebody else had the machine
_REFRESH = 16
_ROWS_THAT_DOUBLE_IT = 64.0  # the start without a measurement


class StepCost:
    """Seconds by rows: measured at the start, corrected by each step of decodes and drafts alone.

    Contexts that grow make all steps slower, so a common factor is followed quickly and the shape slowly. Only the
    shape decides whether drafts pay.
    """

    def __init__(self, most_rows: int, measured: Mapping[int, float]) -> None:
        self._rows = [rows for rows in _ROWS if rows < most_rows] + [most_rows]
        self._seconds = _start(self._rows, measured)
        self._factor = 1.0
        self._observed = 0
        self._curve = self._compute()

    @property
    def curve(self) -> npt.NDArray[np.float64]:
        """Seconds of a step of 0 .. most_rows rows, [most_rows + 1], never falling; but for a common factor."""
        return self._curve

    def seconds(self, rows: int) -> float:
        """Of a step of ``rows``, as steps are now."""
        return float(self._curve[min(rows, self._rows[-1])]) * self._factor

    def observe(self, rows: int, seconds: float) -> None:
        """A step of ``rows`` took ``seconds``."""
        at = bisect.bisect_left(self._rows, rows)
        if at == len(self._rows) or seconds <= 0.0:
            return
        expected = float(self._curve[rows])
        ratio = min(seconds / (expected * self._factor), _OUTLIER)
        self._seconds[at] *= 1.0 + _SLOW * (ratio - 1.0)
        self._factor *= 1.0 + _FAST * (ratio - 1.0)
        self._observed += 1
        if self._observed % _REFRESH == 0:
            self._curve = self._compute()

    def _compute(self) -> npt.NDArray[np.float64]:
        rising = np.maximum.accumulate(np.array(self._seconds))
        curve: npt.NDArray[np.float64] = np.interp(np.arange(self._rows[-1] + 1), self._rows, rising)
        return curve


def _start(rows: list[int], measured: Mapping[int, float]) -> list[float]:
    if not measured:
        return [1.0 + count / _ROWS_THAT_DOUBLE_IT for count in rows]
    known = sorted(measured)
    seconds = np.interp(rows, known, [measured[count] for count in known])
    last = known[-1]
    slope = measured[last] / last / 2  # beyond what was measured rows cost half of what they did on average, or more
    if len(known) > 1:
        slope = max(slope, (measured[last] - measured[known[-2]]) / (last - known[-2]))
    beyond = np.maximum(np.array(rows) - last, 0)
    return [float(value) for value in seconds + slope * beyond]
