"""Stamps of sockets: late neither when the program is busy, nor when it was kept off its core."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Iterator

import pytest

from sessile.bench_agent.arrival_stamps import StampedSocket, StampedSockets, ahead
from sessile.bench_agent.driver.ask import Ask, Sampling
from sessile.bench_agent.driver.dialects import dialect_named
from sessile.bench_agent.driver.observation import Observation
from sessile.bench_agent.driver.openai_http import OpenAiDriver
from sessile.bench_agent.load.overhead import null_server
from sessile.bench_agent.targets.null_pace import Pace, told_stamps

BUSY_S = 0.03
CLOSE_S = 0.001  # two clocks are read one after the other
TPOT_S, TOKENS = 0.1, 12  # each piece comes in alone, however slow the machine

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells stamps on Linux only")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, StampedSocket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        with sender, StampedSocket(fileno=server.accept()[0].detach()) as receiver:
            yield sender, receiver


def until_stamped(sender: socket.socket, receiver: StampedSocket) -> None:
    """The kernel notes nothing before it was asked, and begins a moment later."""
    until = time.monotonic() + 10
    while receiver.came_in(lambda: 5.0) == 5.0:
        assert time.monotonic() < until, "the kernel tells no stamps"
        sender.sendall(b"x")
        receiver.recv(1)


@linux
@pytest.mark.parametrize("into_a_buffer", [False, True])
def test_what_was_read_late_came_in_before(pair: tuple[socket.socket, StampedSocket], into_a_buffer: bool) -> None:
    sender, receiver = pair
    until_stamped(sender, receiver)
    before = time.perf_counter()
    sender.sendall(b"now")
    sent = time.perf_counter()
    keep_busy(BUSY_S)
    if into_a_buffer:
        room = bytearray(8)
        assert receiver.recv_into(room) == 3 and room[:3] == b"now"
    else:
        assert receiver.recv(8) == b"now"
    assert before - CLOSE_S <= receiver.came_in(time.perf_counter) <= sent + CLOSE_S


def test_what_nobody_told_is_now() -> None:
    with StampedSocket() as silent:
        assert silent.came_in(lambda: 5.0) == 5.0


@linux
def test_nothing_came_in_later_than_now(pair: tuple[socket.socket, StampedSocket]) -> None:
    """The system's time was set back since."""
    until_stamped(*pair)
    ticks = iter([1.0, 9.0, 9.0])
    assert pair[1].came_in(lambda: next(ticks)) == 1.0


def test_clocks_are_compared_without_what_came_between() -> None:
    mine, theirs = iter([10.0, 13.0, 20.0, 20.00001]), iter([7.5, 16.0])
    assert ahead(lambda: next(mine), lambda: next(theirs)) == pytest.approx(4.0, abs=1e-4)


def test_a_request_begins_with_the_first_bytes_sent_after_the_last_were_read(
    pair: tuple[socket.socket, StampedSocket],
) -> None:
    other, stamped = pair
    for _ in range(2):
        before = time.perf_counter()
        stamped.send(b"head")
        sent = time.perf_counter()
        keep_busy(0.002)
        stamped.sendmsg([b"bo", b"dy"])
        assert before - CLOSE_S <= stamped.began(time.perf_counter) <= sent + CLOSE_S
        other.sendall(b"answer")
        assert stamped.recv(16) == b"answer"
        assert stamped.began(time.perf_counter) <= sent + CLOSE_S
    assert stamped.made(time.perf_counter) <= before - 0.002


async def test_a_transports_socket_is_found_while_it_is_open() -> None:
    sockets = StampedSockets()
    found: list[StampedSocket | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.append(sockets.under(writer.transport))
        writer.write(await reader.read(10))
        writer.close()

    listener = sockets.listening("127.0.0.1")
    address = listener.getsockname()
    async with await asyncio.start_server(serve, sock=listener):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"ping")
        assert await reader.read() == b"ping"
        assert sockets.under(writer.transport) is None  # another program's
        writer.close()
        await writer.wait_closed()
    assert isinstance(found[0], StampedSocket)
    assert sockets.under(None) is None


@linux
async def test_a_busy_harness_stamps_pieces_no_later() -> None:
    """The event loop is held for 30 ms out of 31: by the time of reading, a piece would be late by 15 ms."""
    async with null_server("http", Pace(ttft_s=0.05, tpot_s=TPOT_S)) as address:
        driver = OpenAiDriver(f"http://{address}", model=None, dialect=dialect_named("openai"))
        busy = asyncio.create_task(hold_the_loop())
        try:
            conversation = driver.conversation("s")
            for index in range(2):
                seen = Observation()
                await conversation.turn(Ask(index=index, text="hi", sampling=Sampling(max_tokens=TOKENS)), seen)
        finally:
            busy.cancel()
            await driver.close()
    received, sent = told_stamps(seen.pieces)
    first_late, *others = (at - stamp for (at, _), stamp in zip(seen.arrivals, sent, strict=True))
    late = sorted(others)
    assert len(late) == TOKENS - 1
    assert late[0] > -CLOSE_S and late[len(late) // 2] < 0.005
    assert received - seen.started < BUSY_S  # the second turn's request, on an open connection
    assert first_late < 0.05


def keep_busy(seconds: float) -> None:
    """As a computation would: nothing else runs in this program meanwhile."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


async def hold_the_loop() -> None:
    while True:
        await asyncio.sleep(0.001)
        keep_busy(BUSY_S)
