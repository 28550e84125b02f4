"""What the client opens it closes itself: no stream, task or file is left to the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sessile.server.client import AsyncSessionClient, DeadlineExceeded, SamplingParams, SessileError, SessionClient

GREEDY = SamplingParams(temperature=0.0)


@contextmanager
def abandoned() -> Iterator[list[str]]:
    """Names of the asynchronous generators begun here, on either side of the wire, that only the collector closes."""
    before, found = sys.get_asyncgen_hooks(), list[str]()

    def finalise(generator: Any) -> None:
        found.append(generator.__qualname__)
        assert before.finalizer is not None
        before.finalizer(generator)

    sys.set_asyncgen_hooks(before.firstiter, finalise)
    try:
        yield found
        gc.collect()
    finally:
        sys.set_asyncgen_hooks(*before)


async def torn() -> AsyncIterator[bytes]:
    yield b"not a session"
    raise OSError("the tape is torn")


@pytest.mark.parametrize("api_key", [None, "sk-sessile-anything"])
async def test_every_stream_is_closed_by_its_owner(front: Any, tmp_path: Path, api_key: str | None) -> None:
    with abandoned() as found:
        async with AsyncSessionClient(front.target, api_key=api_key) as client, client.open() as session:
            async with session.generate(messages="hi", sampling=GREEDY) as turn:
                await anext(turn)  # and no more
            await session.generate(messages="hi", sampling=GREEDY).wait()
            watch = session.watch()
            await anext(watch)
            await watch.aclose()
            chunks = session.export()
            await anext(chunks)
            await chunks.aclose()
            await session.export_to(tmp_path / "file")
            await client.import_session(tmp_path / "file")
            (tmp_path / "file").write_bytes(bytes(2**20))
            with pytest.raises(SessileError):
                await client.import_session(tmp_path / "file")
            failing = torn()
            with pytest.raises((OSError, SessileError)):
                await client.import_session(failing)
            await failing.aclose()
            front.engine.will_say([64, 65, 257], gate=asyncio.Event())
            with pytest.raises(DeadlineExceeded):
                await session.generate(messages="hi", sampling=GREEDY, timeout_s=0.2).wait()
            await front.engine.idle.wait()
    assert found == []


def is_complaint(record: logging.LogRecord) -> bool:
    """Of what was left open: not of loops that grpc.aio wakes for each other's events."""
    woken = record.exc_info is not None and isinstance(record.exc_info[1], BlockingIOError)
    return record.name == "asyncio" and record.levelno >= logging.WARNING and not woken


def _leave_early(target: str) -> None:
    client = SessionClient(target)
    session = client.open()
    for _ in session.generate(messages="hi", sampling=GREEDY):
        break
    client.close()
    gc.collect()


async def test_a_loop_that_is_left_early_leaves_nothing_behind(front: Any, caplog: pytest.LogCaptureFixture) -> None:
    front.engine.will_say([64, 65, 257], gate=asyncio.Event())
    with caplog.at_level(logging.DEBUG, logger="asyncio"):
        await asyncio.to_thread(_leave_early, front.target)
    await front.engine.idle.wait()
    assert [record.message for record in caplog.records if is_complaint(record)] == []


async def test_closing_the_client_ends_what_other_threads_wait_for(front: Any) -> None:
    front.engine.will_say([64, 257], gate=asyncio.Event())
    client = await asyncio.to_thread(SessionClient, front.target)
    session = await asyncio.to_thread(client.open)
    waiting = asyncio.ensure_future(asyncio.to_thread(session.generate(messages="hi").wait))
    async with asyncio.timeout(60):
        while not front.engine.submitted:
            await asyncio.sleep(0.005)
        await asyncio.to_thread(client.close)
        with pytest.raises(SessileError):
            await waiting
        await front.engine.idle.wait()
    with pytest.raises(SessileError, match="closed"):
        await asyncio.to_thread(client.open)


async def test_a_client_that_cannot_be_made_leaves_no_thread(front: Any) -> None:
    with pytest.raises((TypeError, AttributeError)):
        await asyncio.to_thread(SessionClient, front.target, credentials="none")
    assert "sessile-client" not in [thread.name for thread in threading.enumerate()]
