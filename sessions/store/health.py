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
CHECK_EVERY_S = 5.0  # of a damaged file: all of it is read
LONGEST_CHECK_PAUSE_S = 600.0

logger = logging.getLogger(__name__)


class StoreHealth:
    """Told by the thread that writes how each transaction ended; anyone may ask.

    After a failure of the disk, changes are refused before anything is computed for them, and ``is_probe_due`` says
    when to try with a change that nobody waits for. A file that was found damaged is only read until all of it was
    checked and is sound (a disk that fails to read may look like damage). The pause until the next probe grows with
    each one that fails; changes that fail meanwhile say nothing new. ``clock`` in seconds that never go back.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._of_disk = CircuitBreaker(1, PROBE_EVERY_S, LONGEST_PROBE_PAUSE_S, clock)
        self._of_damage = CircuitBreaker(1, CHECK_EVERY_S, LONGEST_CHECK_PAUSE_S, clock)
        self._failure: StoreError | None = None

    @property
    def failure(self) -> StoreError | None:
        """Why no change is taken now, as an error to raise; None: changes are taken."""
        failure = self._failure
        if failure is None:
            return None
        return type(failure)(failure.message, remedy=failure.remedy, retry_after_s=failure.retry_after_s)

    def failed(self, error: StoreUnavailable) -> None:
        """A change could not be written."""
        with self._lock:
            if self._failure is None:
                logger.error("sessions are not kept from now on: %s", error)
            if not self._of_damage.is_open:
                self._failure = error
                if not self._of_disk.is_open:
                    self._of_disk.failed(error.message)

    def damaged(self, error: StoreError) -> None:
        """SQLite found, with a change, that the file is not what was written."""
        with self._lock:
            self._failure = error
            if not self._of_damage.is_open:
                logger.critical("sessions are only read from now on: %s", error)
                self._of_damage.failed(error.message)

    def probe_failed(self, error: StoreUnavailable) -> None:
        """A probe could not be written either; or not even read, where a file has to be checked first."""
        with self._lock:
            if self._of_damage.is_open:
                self._of_damage.failed(error.message)
            else:
                self._failure = error
                self._of_disk.failed(error.message)

    def check_failed(self, error: StoreError) -> None:
        """A check of all of a damaged file found that it still is."""
        with self._lock:
            self._failure = error
            self._of_damage.failed(error.message)

    def succeeded(self) -> None:
        """A transaction was written."""
        if self._failure is None:
            return
        with self._lock:
            if self._failure is not None and not self._of_damage.is_open:
                logger.warning("the session store can be written again")
                self._failure = None
                self._of_disk.succeeded()

    def found_sound(self) -> None:
        """All of the file was read and checked; whether it can be written, the next transaction tells."""
        with self._lock:
            self._of_damage.succeeded()

    @property
    def is_damaged(self) -> bool:
        """Whether the file has to be checked before it is written again."""
        return self._of_damage.is_open

    def is_probe_due(self) -> bool:
        """Whether to probe now; True once for each attempt."""
        with self._lock:
            breaker = self._of_damage if self._of_damage.is_open else self._of_disk
            return self._failure is not None and breaker.allows()

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
