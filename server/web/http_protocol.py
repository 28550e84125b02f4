"""What a connection may cost whatever is asked on it: size of headers, time to send a request, time to read an answer.

uvicorn's protocol reads headers of any length for any time, and waits for a client that does not read for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .http_config import HttpConfig

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_PIECE_BYTES = 32 * 1024  # of a body, for which there is as much time as for all headers
_LINGER_S = 2.0  # in which a client that still sends can read why it is cut off


def bounded_protocol(http: HttpConfig) -> type[BoundedProtocol]:
    """A protocol for uvicorn with the bounds of ``http``."""

    class Protocol(BoundedProtocol):
        bounds = http

    return Protocol


class _Deadline:
    """Calls ``passed`` once, ``seconds`` after its last start, unless it is stopped before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, passed: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._passed = passed
        self._handle: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        return self._handle is not None

    def start(self) -> None:
        self.stop()
        self._handle = self._loop.call_later(self._seconds, self._pass)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _pass(self) -> None:
        self._handle = None
        self._passed()


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A client that exceeds a bound is told where it can be, and cut off. ``lost``: it is over."""

    bounds = HttpConfig()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pending_bytes = 0  # that came and are no body: a line, headers, trailers, whatever stands around chunks
        self._unread_bytes = 0  # of the answer, when we last looked whether the client reads
        self._piece_bytes = 0  # of the body, since its time began anew
        self._is_cut_off = False
        self.lost: asyncio.Future[None] = self.loop.create_future()
        self._sending = _Deadline(self.loop, self.bounds.send_timeout_s, self._give_up_request)
        self._reading = _Deadline(self.loop, self.bounds.read_timeout_s, self._give_up_answer)
        self._leaving = _Deadline(self.loop, _LINGER_S, self._abort)

    # -- what the transport tells ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._sending.start()

    def connection_lost(self, exc: Exception | None) -> None:
        for deadline in (self._sending, self._reading, self._leaving):
            deadline.stop()
        super().connection_lost(exc)
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._is_cut_off:
            return
        self._pending_bytes += len(data)
        if not self._sending.runs:
            self._sending.start()  # another request, on a connection that was idle
        super().data_received(data)
        if self._pending_bytes > self.bounds.max_header_bytes:
            self._cut_off(_TOO_LARGE)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        self._reading.stop()
        super().resume_writing()

    # -- what the parser tells ------------------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.bounds.max_header_bytes:
            self._cut_off(_TOO_LARGE)
        if self._is_cut_off:
            return
        self._piece_bytes = 0
        self._sending.start()  # for the body, if there is one
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._is_cut_off:
            return
        self._pending_bytes = 0
        self._piece_bytes += len(body)
        if self._piece_bytes >= _PIECE_BYTES:
            self._piece_bytes = 0
            self._sending.start()
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_cut_off:
            return
        self._pending_bytes = 0
        self._sending.stop()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._await_reading()  # what is left is too little for the transport to speak of it

    # -- bounds ---------------------------------------------------------------------------------------------------

    def _give_up_request(self) -> None:
        if self.flow.read_paused or self._answers:  # it is not the client that we wait for
            self._sending.start()
        else:
            self._cut_off(_TOO_SLOW)

    def _await_reading(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._reading.start()

    def _give_up_answer(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread and unread >= self._unread_bytes:
            self._abort()
        elif unread:  # slowly, but it reads
            self._await_reading()

    @property
    def _answers(self) -> bool:
        """Whether a request is complete and its answer is not."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _cut_off(self, words: bytes) -> None:
        """End the connection, and what was asked on it. ``words`` are sent unless they would stand in an answer."""
        if self._is_cut_off or self.transport.is_closing():
            return
        self._is_cut_off = True
        self._sending.stop()
        cycle = self.cycle
        unanswered = cycle is None or cycle.response_complete or not cycle.response_started
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if not unanswered or not self.transport.can_write_eof():
            if unanswered:
                self.transport.write(words)
            self.transport.close()
        else:  # a socket closed with unread input resets the connection, and the client would never see the words
            self.flow.resume_reading()
            self.transport.write(words)
            self.transport.write_eof()
        self._leaving.start()

    def _abort(self) -> None:
        self.transport.abort()
