"""Work that goes on beside the turns: it ends when it is done or when it is ended, and by no error."""

from __future__ import annotations

import asyncio

import pytest

from sessile.sessions.background import AGAIN_S, keep_doing


async def test_it_begins_anew_after_each_error_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    begun, pauses = 0, []

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise ValueError(f"number {begun}")

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    await keep_doing("nobody is told", work, sleep)
    assert (begun, pauses) == (3, [AGAIN_S] * 2)
    assert [record.getMessage() for record in caplog.records] == [
        f"nobody is told: number {number}; it begins anew in 1 s" for number in (1, 2)
    ]


async def test_it_is_ended_in_the_middle() -> None:
    working = asyncio.ensure_future(keep_doing("nobody is told", asyncio.Event().wait))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
