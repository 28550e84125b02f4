"""Work beside the turns that has to go on for as long as the server does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

AGAIN_S = 1.0  # from an error until the work begins anew

Sleep = Callable[[float], Awaitable[None]]


async def keep_doing(what: str, work: Callable[[], Awaitable[None]], sleep: Sleep = asyncio.sleep) -> None:
    """Do ``work`` until it returns; after an error of its own, which is logged, it begins anew.

    ``what`` names the work in the log. Nobody waits for such work, so that an error would end it without a word.
    """
    while True:
        try:
            await work()
        except Exception as error:
            logger.exception("%s: %s; it begins anew in %.0f s", what, error, AGAIN_S)
            await sleep(AGAIN_S)
        else:
            return
