"""Work for a client that may go away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import Receive

from ..tasks import end

logger = logging.getLogger(__name__)


async def while_connected(
    work: Coroutine[Any, Any, None], receive: Receive, on_gone: Callable[[], None] = lambda: None
) -> None:
    """Do ``work``, raising what it raises; when the client goes away first, call ``on_gone`` and cancel it."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_client_is_gone(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            logger.debug("the client went away")
            on_gone()
    finally:
        await end(gone)
        await end(working)
    if not working.cancelled():
        working.result()


async def _client_is_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
