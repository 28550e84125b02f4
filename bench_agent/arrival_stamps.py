"""When bytes went out and came in at a socket: stamps that are not late when the program is.

Linux notes for each packet when it was received (SO_TIMESTAMPNS, socket(7)) and tells it with the bytes. So what the
harness adds by being busy, or by being kept off its core, is known and not counted. Elsewhere nothing is told, and the
stamp is the time at which it was asked for; so are a program's first stamps, until the kernel has begun. An event loop
that reads sockets by itself, as uvloop does, makes none.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; Python names it from 3.14 on
_TIMESPEC = struct.Struct("@ll")
_ROOM = socket.CMSG_SPACE(_TIMESPEC.size)
_CLOSE_S, _TRIES = 20e-6, 5

Clock = Callable[[], float]
AddressInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[Any, ...]]


def ahead(clock: Clock, other: Clock) -> float:
    """Seconds by which a clock is ahead of another one.

    They are read one after the other; where the program was kept off its core between, that is done again.
    """
    closest, found = math.inf, 0.0
    for _ in range(_TRIES):
        before, there, after = clock(), other(), clock()
        if after - before < closest:
            closest, found = after - before, (before + after) / 2 - there
        if closest < _CLOSE_S:
            break
    return found


class StampedSocket(socket.socket):
    """A stream socket that knows when what was read last had come in, and when what answers it began to go out."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._made = self._began = time.perf_counter()
        self._sending = False
        self._came_in_s: float | None = None
        if sys.platform == "linux":
            self.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """As a socket's, and notes the kernel's stamp."""
        data, told, _, _ = self.recvmsg(size, _ROOM, flags)
        self._note(told)
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As a socket's, and notes the kernel's stamp."""
        room = memoryview(buffer)
        count, told, _, _ = self.recvmsg_into([room[:nbytes] if nbytes else room], _ROOM, flags)
        self._note(told)
        return count

    def send(self, data: Any, flags: int = 0, /) -> int:
        """As a socket's, and notes the first one after something was read."""
        self._begin()
        return super().send(data, flags)

    def sendmsg(self, buffers: Any, *given: Any) -> int:
        """As a socket's, and notes the first one after something was read."""
        self._begin()
        return super().sendmsg(buffers, *given)

    def made(self, clock: Clock) -> float:
        """When it was made, on this clock."""
        return self._made + ahead(clock, time.perf_counter)

    def began(self, clock: Clock) -> float:
        """When the first byte was sent of all that went out after what was read before it, on this clock."""
        return self._began + ahead(clock, time.perf_counter)

    def came_in(self, clock: Clock) -> float:
        """When what was read last had come in, on this clock; now where the kernel does not say."""
        now = clock()
        return now if self._came_in_s is None else min(now, self._came_in_s + ahead(clock, time.time))

    def _begin(self) -> None:
        if not self._sending:
            self._sending, self._began = True, time.perf_counter()

    def _note(self, told: list[tuple[int, int, bytes]]) -> None:
        self._sending = False
        for level, kind, data in told:
            if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
                seconds, nanoseconds = _TIMESPEC.unpack_from(data)
                self._came_in_s = seconds + nanoseconds * 1e-9  # of the system's time of day


class StampedSockets:
    """The stamped sockets of one program, found by the transports that read from them."""

    def __init__(self) -> None:
        self._open: WeakValueDictionary[int, StampedSocket] = WeakValueDictionary()

    def connecting(self, address: AddressInfo) -> socket.socket:
        """A socket that is not connected yet, for an address as ``getaddrinfo`` gives it."""
        family, kind, protocol, _, _ = address
        return self._kept(StampedSocket(family, kind, protocol))

    def listening(self, host: str) -> socket.socket:
        """A socket bound to a free port; those of its connections are stamped."""
        listener = _Listener(self)
        listener.bind((host, 0))
        return listener

    def under(self, transport: asyncio.BaseTransport | None) -> StampedSocket | None:
        """The socket of this transport; None where it is closed."""
        found = None if transport is None else transport.get_extra_info("socket")
        return None if found is None else self._open.get(found.fileno())

    def accepted(self, connection: socket.socket) -> socket.socket:
        """The same connection, stamped."""
        return self._kept(StampedSocket(fileno=connection.detach()))

    def _kept(self, stamped: StampedSocket) -> StampedSocket:
        self._open[stamped.fileno()] = stamped
        return stamped


class _Listener(socket.socket):
    def __init__(self, stamped: StampedSockets) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self._stamped = stamped

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        return self._stamped.accepted(connection), address
