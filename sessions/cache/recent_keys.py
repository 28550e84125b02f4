"""Keys that were seen somewhere not long ago: bounded in number and in time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class RecentKeys:
    """Forgets a key ``seconds`` after it was last noted, and the oldest when there are more than ``most``."""

    def __init__(self, seconds: float, most: int, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._most = most
        self._clock = clock
        self._noted: OrderedDict[bytes, float] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        noted = self._noted.get(key)
        return noted is not None and self._clock() - noted < self._seconds

    def note(self, key: bytes) -> None:
        self._noted[key] = self._clock()
        self._noted.move_to_end(key)
        if len(self._noted) > self._most:
            self._noted.popitem(last=False)

    def forget(self, key: bytes) -> None:
        self._noted.pop(key, None)
