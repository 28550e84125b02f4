"""Work that is given up when an event is set."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, _Result]) -> _Result | None:
    """The work's result; None when ``stop`` is set before it is there. The work is over either way."""
    doing, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((doing, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        doing.cancel()
        stopped.cancel()
        await asyncio.wait((doing, stopped))
    return None if doing.cancelled() else doing.result()
