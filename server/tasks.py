"""The end of a task that somebody owns."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

logger = logging.getLogger(__name__)


async def end(task: asyncio.Future[Any]) -> None:
    """Cancel a task, unless it is done, and wait until it has cleaned up. Its result stays in it.

    What it failed with is no surprise to whoever ends it, and not told again when the task is collected.
    """
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("a task that is over had failed", exc_info=error)
