"""The end of a task: it has cleaned up, and nothing is told of it when it is collected."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from sessile.server.tasks import end


async def test_it_has_cleaned_up() -> None:
    said = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            said.append("cleaned up")

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    await end(working)
    assert said == ["cleaned up"]
    assert working.cancelled()
    await end(working)


async def test_a_failure_is_not_told_again_when_it_is_collected() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def fail_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("in the middle of cleaning up")

    async def fail() -> None:
        raise ValueError("at once")

    working = [asyncio.create_task(fail_at_the_end()), asyncio.create_task(fail())]
    await asyncio.sleep(0)
    for task in working:
        await end(task)
        assert isinstance(task.exception(), ValueError)
    del working, task
    gc.collect()
    assert told == []
