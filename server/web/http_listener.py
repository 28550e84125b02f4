"""Where connections of HTTP are accepted: so many at once, those that have not come to speak yet among them.

uvicorn's own listening knows no bound, and the event loop counts a connection over TLS only after its handshake.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from http import HTTPStatus

import msgspec

from .errors import TooManyConnections, error_response
from .http_protocol import BoundedProtocol

logger = logging.getLogger(__name__)

_ACCEPTS_AT_ONCE = 64  # before others have their turn in the loop
_MOST_TOLD = 64  # refused connections that are kept for a moment, to be told why
_TOLD_S = 2.0
_PAUSE_S = 1.0  # when the process may open no more files


class ConnectionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Connections that are ``open`` now, and that were ``refused`` since the start."""

    open: int = 0
    refused: int = 0


class HttpListener:
    """Owns a listening socket and the places of ``max_connections`` connections. For one event loop.

    What comes when all places are taken gets a 503 and ``Retry-After``; over TLS, or when too many are told already, it
    is closed at once. A handshake has ``handshake_s`` seconds.
    """

    def __init__(self, listener: socket.socket, max_connections: int, handshake_s: float) -> None:
        self._listener = listener
        self._max_connections = max_connections
        self._handshake_s = handshake_s
        self._serving: set[asyncio.Task[None]] = set()
        self._told: set[socket.socket] = set()
        self._refused = 0
        self._refusal = _refusal(max_connections)

    def counts(self) -> ConnectionCounts:
        """As it stands now."""
        return ConnectionCounts(open=len(self._serving), refused=self._refused)

    def start(
        self, make_protocol: Callable[[], BoundedProtocol], context: ssl.SSLContext | None, *, backlog: int
    ) -> None:
        """Accept from now on. ``make_protocol`` makes one for each connection; ``context``: TLS."""
        self._make_protocol = make_protocol
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._listener.listen(backlog)
        self._loop.add_reader(self._listener, self._accept)

    def stop(self) -> None:
        """Accept nothing more, and close the socket. What is open goes on."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for connection in list(self._told):
            self._let_go(connection)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("no connection over HTTP is accepted for %.0f s: %s", _PAUSE_S, error.strerror)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_PAUSE_S, self._go_on)
                return
            connection.setblocking(False)
            if len(self._serving) >= self._max_connections:
                self._refuse(connection)
            else:
                task = self._loop.create_task(self._serve(connection))
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)

    def _go_on(self) -> None:
        if self._listener.fileno() >= 0:  # not stopped meanwhile
            self._loop.add_reader(self._listener, self._accept)

    async def _serve(self, connection: socket.socket) -> None:
        """One connection, until it is lost."""
        handshake_s = None if self._context is None else self._handshake_s
        protocol = self._make_protocol()
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._context, ssl_handshake_timeout=handshake_s
            )
        except OSError as error:  # of TLS, too
            logger.debug("a connection came to nothing: %s", error)
            connection.close()
            return
        await protocol.lost

    def _refuse(self, connection: socket.socket) -> None:
        self._refused += 1
        if self._context is not None or len(self._told) >= _MOST_TOLD:
            connection.close()
            return
        # Closed at once, with a request unread, it would be reset, and the client would never see the words.
        self._told.add(connection)
        self._loop.call_later(_TOLD_S, self._let_go, connection)
        try:
            connection.send(self._refusal)  # into a buffer that is empty
            connection.shutdown(socket.SHUT_WR)
        except OSError:  # it is gone already
            self._let_go(connection)

    def _let_go(self, connection: socket.socket) -> None:
        self._told.discard(connection)
        connection.close()


def _refusal(max_connections: int) -> bytes:
    """All of the answer that a connection gets for which there is no place."""
    answer = error_response(TooManyConnections(max_connections))
    status = HTTPStatus(answer.status_code)
    headers = [*answer.raw_headers, (b"connection", b"close")]
    first = f"HTTP/1.1 {status.value} {status.phrase}".encode()
    return b"\r\n".join([first, *(name + b": " + value for name, value in headers), b"", bytes(answer.body)])
