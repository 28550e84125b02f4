"""What the client opens it closes itself: no stream, task or file is left to the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from left_generators import left_generators

from sessile.server.client import (
    NO_RETRIES,
    AsyncSessionClient,
    DeadlineExceeded,
    RetryPolicy,
    SamplingParams,
    SessileError,
    SessionClient,
)

GREEDY = SamplingParams(temperature=0.0)
LONG_S = 60.0  # no test waits for it unless what it tests is missing


async def torn() -> AsyncIterator[bytes]:
    yield b"not a session"
    raise OSError("the tape is torn")


@pytest.mark.parametrize("api_key", [None, "sk-sessile-anything"])
async def test_every_stream_is_closed_by_its_owner(front: Any, tmp_path: Path, api_key: str | None) -> None:
    """On either side of the wire: both are in this process."""
    with left_generators() as left:
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
    assert left == []


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


def client_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "sessile-client"}


async def test_a_client_that_cannot_be_made_leaves_no_thread(front: Any) -> None:
    before = client_threads()
    with pytest.raises((TypeError, AttributeError)):
        await asyncio.to_thread(SessionClient, front.target, credentials="none")
    assert client_threads() <= before


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nobody answers, and nobody else can begin to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def in_a_thread(call: Callable[[], object]) -> Future[object]:
    """What becomes of ``call``; if it never ends, the process may all the same."""
    outcome: Future[object] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def at_once(*calls: Callable[[], object]) -> list[Future[object]]:
    together = threading.Barrier(len(calls))

    def with_the_others(call: Callable[[], object]) -> object:
        together.wait(LONG_S)
        return call()

    return [in_a_thread(partial(with_the_others, call)) for call in calls]


@dataclass
class LongGoodbye:
    """Waits between two tries of a call, and when it is cancelled, until it is let go."""

    begun: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    async def __call__(self, _: float) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
            while not self.let_go.is_set():
                await asyncio.sleep(0.005)


def test_a_call_that_begins_while_the_client_is_being_closed_is_refused(nobody: str) -> None:
    """When what there was to end is known already: a loop that stops would not end the call."""
    goodbye, before = LongGoodbye(), client_threads()
    client = SessionClient(nobody, retry=RetryPolicy(sleep=goodbye))
    waiting = in_a_thread(client.open)
    assert goodbye.begun.wait(LONG_S)
    closing = in_a_thread(client.close)
    try:
        assert goodbye.cancelled.wait(LONG_S)
        late = in_a_thread(client.open)
        with pytest.raises(SessileError, match="the client is closed"):
            late.result(LONG_S)
        again = in_a_thread(client.close)
    finally:
        goodbye.let_go.set()
    assert closing.result(LONG_S) is None
    assert again.result(LONG_S) is None
    assert client_threads() <= before
    with pytest.raises(SessileError, match="the client is closed"):
        waiting.result(LONG_S)


def test_a_client_may_be_closed_and_called_by_several_threads_at_once(nobody: str) -> None:
    before = client_threads()
    for _ in range(20):
        client = SessionClient(nobody, retry=NO_RETRIES)
        *calls, closing, again = at_once(client.open, client.open, client.close, client.close)
        for call in calls:  # nobody is reached, or it is closed
            with pytest.raises(SessileError):
                call.result(LONG_S)
        assert closing.result(LONG_S) is None
        assert again.result(LONG_S) is None
        assert client_threads() <= before


def test_a_connection_that_fails_to_close_leaves_no_thread(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    aclose, before = AsyncSessionClient.aclose, client_threads()

    async def failing(client: AsyncSessionClient) -> None:
        await aclose(client)
        raise OSError("not like this")

    monkeypatch.setattr(AsyncSessionClient, "aclose", failing)
    client = SessionClient(nobody)
    with pytest.raises(OSError, match="not like this"):
        client.close()
    assert client_threads() <= before
    client.close()


def test_what_grpc_tells_a_client_that_is_closed_disturbs_nobody(nobody: str) -> None:
    """It hands the end of a call on to its loop, from any loop of the process, and stops at an error."""
    client, heard = SessionClient(nobody), list[int]()
    client.close()
    assert client._loop._loop.call_soon_threadsafe(heard.append, 1).cancelled()
    assert heard == []
