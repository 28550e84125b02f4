"""What a connection may cost whatever is asked on it: size of headers, time to send a request, time to read an answer.

uvicorn's protocol reads headers of any length for any time, and waits for a client that does not read for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .http_config import HttpConfig

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def bounded_protocol(http: HttpConfig) -> type[asyncio.Protocol]:
    """A protocol for uvicorn with the bounds of ``http``."""

    class Protocol(BoundedProtocol):
        bounds = http

    return Protocol


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A client that exceeds a bound is told where it can be, and cut off."""

    bounds = HttpConfig()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._in_header = True
        self._sending: asyncio.TimerHandle | None = None  # until the client sends on
        self._reading: asyncio.TimerHandle | None = None  # until it reads on

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._sending = _stopped(self._sending)
        self._reading = _stopped(self._reading)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_header:
            self._header_bytes += len(data)
            if self._sending is None:
                self._expect_more()
        super().data_received(data)
        if self._in_header and self._header_bytes > self.bounds.max_header_bytes:
            self._cut_off(_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._in_header = False
        self._expect_more()  # the body, if there is one
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.bounds.max_header_bytes:
            self._cut_off(_TOO_LARGE)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._expect_more()
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._sending = _stopped(self._sending)
        self._in_header, self._header_bytes = True, 0

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = _stopped(self._reading)
        self._reading = self.loop.call_later(self.bounds.read_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._reading = _stopped(self._reading)
        super().resume_writing()

    def _expect_more(self) -> None:
        """All headers come within the time, and then each piece of the body."""
        self._sending = _stopped(self._sending)
        self._sending = self.loop.call_later(self.bounds.send_timeout_s, self._give_up)

    def _give_up(self) -> None:
        if self.flow.read_paused:  # it is we who do not read
            self._expect_more()
        else:
            self._cut_off(_TOO_SLOW)

    def _cut_off(self, words: bytes) -> None:
        self._sending = _stopped(self._sending)
        if not self.transport.is_closing():
            self.transport.write(words)
            self.transport.close()


def _stopped(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
