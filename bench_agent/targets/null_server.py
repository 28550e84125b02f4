"""A server that does nothing but keep time: what the harness measures of it is the harness.

It speaks as much of OpenAI's protocol as the driver needs. An answer's first piece comes ``ttft_s`` after the request,
the others ``tpot_s`` apart, by the clock and not by the length of sleeps; each piece is the time at which it was sent,
the first one also that at which the request was read, in seconds of the system's monotonic clock, which all processes
of a machine share. Run as a program it prints its port and serves until its standard input is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass

import msgspec

from .. import event_loop

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_NOTHING = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class _Body(msgspec.Struct):
    max_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds to the first piece, and between pieces."""

    ttft_s: float
    tpot_s: float


class NullServer:
    """Answers on one port of the loopback interface."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._body = msgspec.json.Decoder(_Body)
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**22, backlog=1024)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET "):
                    writer.write(_NOTHING)
                    continue
                body = await reader.readexactly(_content_length(head))
                await self._answer(writer, time.perf_counter(), self._body.decode(body).max_tokens)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):  # cancelled: the program ends
            return
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, received: float, tokens: int) -> None:
        writer.write(_HEAD)
        due = received + self._pace.ttft_s
        for number in range(tokens):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            stamps = f"{received!r},{time.perf_counter()!r}" if number == 0 else f"{time.perf_counter()!r}"
            _write_event(writer, b'{"choices":[{"delta":{"content":"' + stamps.encode() + b'"}}]}')
            due += self._pace.tpot_s
        usage = {"prompt_tokens": 1, "completion_tokens": tokens}
        _write_event(writer, msgspec.json.encode({"choices": [], "usage": usage}))
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()


def _write_event(writer: asyncio.StreamWriter, payload: bytes) -> None:
    event = b"data: " + payload + b"\n\n"
    writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def _main(pace: Pace) -> None:
    port = await NullServer(pace).start()
    print(port, flush=True)  # noqa: T201 - its parent reads it
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="the harness's null server")
    parser.add_argument("--ttft", type=float, default=0.05)
    parser.add_argument("--tpot", type=float, default=0.02)
    given = parser.parse_args()
    event_loop.run(_main(Pace(given.ttft, given.tpot)))
