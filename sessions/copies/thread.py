"""The running server's copies."""

from __future__ import annotations

import asyncio
import logging
import threading

from ..errors import StoreError
from .copies import DataCopies

FIRST_LOOK_S = 60.0  # after the start: by then it is clear that this is no short visit
LOOK_EVERY_S = 600.0

logger = logging.getLogger(__name__)


class CopyThread:
    """Makes a copy when one is due, from its start on until ``aclose``.

    ``is_failing``: the last one that was due could not be made, or not whole; why, the log says.
    """

    def __init__(self, copies: DataCopies) -> None:
        self._copies = copies
        self.is_failing = False
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sessile-copies", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        wait_s = FIRST_LOOK_S
        while not self._leaving.wait(wait_s):
            wait_s = LOOK_EVERY_S
            try:
                if (made := self._copies.make_if_due()) is not None:
                    logger.debug("copied the data to %s", made)
                    self.is_failing = not self._copies.is_whole(made)
            except (StoreError, OSError) as error:
                self.is_failing = True
                logger.warning("%s", error)
            except Exception:
                self.is_failing = True
                logger.exception("no copy of the data could be made")

    async def aclose(self) -> None:
        """Let a copy in the making end; other tasks go on meanwhile."""
        self._leaving.set()
        await asyncio.to_thread(self._thread.join)
