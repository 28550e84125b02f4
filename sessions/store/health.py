"""Whether the session store can be written: known from how its last changes ended, so that a refusal costs nothing."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ..cache.breaker import CircuitBreaker
from ..errors import StoreError, StoreUnavailable

ROOM_BYTES = 2**20  # on the disk, before changes are taken again: else the next turn would fill it at once
PROBE_EVERY_S = 1.0  # at first; then less often
LONGEST_PROBE_PAUSE_S = 8.0

logger = logging.getLogger(__name__)


class StoreHealth:
    """Told by the thread that writes how each transaction ended; anyone may ask.

    After a failure of the disk, changes are refused before anything is computed for them, and ``is_probe_due`` says
    when to try with a change that nobody waits for. Damage of the file stays: what was found damaged is only read from
    then on. ``clock`` in seconds that never go back.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._breaker = CircuitBreaker(1, PROBE_EVERY_S, LONGEST_PROBE_PAUSE_S, clock)
        self._failure: StoreError | None = None
        self._is_damaged = False

    @property
    def failure(self) -> StoreError | None:
        """Why no change is taken now, as an error to raise; None: changes are taken."""
        failure = self._failure
        if failure is None:
            return None
        return type(failure)(failure.message, remedy=failure.remedy, retry_after_s=failure.retry_after_s)

    def failed(self, error: StoreUnavailable) -> None:
        """A transaction could not be written."""
        with self._lock:
            if self._failure is None:
                logger.error("sessions are not kept from now on: %s", error)
            if not self._is_damaged:
                self._failure = error
                self._breaker.failed(error.message)

    def damaged(self, error: StoreError) -> None:
        """SQLite found that the file is not what it wrote."""
        with self._lock:
            if not self._is_damaged:
                logger.critical("sessions are only read from now on: %s", error)
            self._is_damaged = True
            self._failure = error

    def succeeded(self) -> None:
        """A transaction was written."""
        if self._failure is None:
            return
        with self._lock:
            if self._failure is not None and not self._is_damaged:
                logger.warning("the session store can be written again")
                self._failure = None
                self._breaker.succeeded()

    def is_probe_due(self) -> bool:
        """Whether to try a change now; True once for each attempt."""
        with self._lock:
            return self._failure is not None and not self._is_damaged and self._breaker.allows()

    def require_room(self) -> None:
        """Raise StoreUnavailable unless there is room for a few turns."""
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError as error:
            raise StoreUnavailable(f"the session store's disk does not answer: {error.strerror}") from error
        if free < ROOM_BYTES:
            raise StoreUnavailable(
                f"the disk of the session store is full: {free >> 10} KiB are left",
                remedy=f"free space for {self._folder}",
            )
