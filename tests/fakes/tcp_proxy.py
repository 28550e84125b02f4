"""Stands between a client and a server, and cuts the connection when it is told to."""

from __future__ import annotations

import asyncio
import contextlib


class TcpProxy:
    """Listens on ``port``. ``cut_after`` bytes towards the client the connections break, once each time it is set."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut_after: int | None = None
        self.cuts = 0
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break all connections, as a cable that is pulled out: nothing more arrives on either side."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers |= {to_client, to_server}
        for reader, writer, counted in ((from_client, to_server, False), (from_server, to_client, True)):
            task = asyncio.ensure_future(self._pass_on(reader, writer, counted=counted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(4096):
                if counted and self.cut_after is not None:
                    self.cut_after -= len(piece)
                    if self.cut_after < 0:
                        self.cut_after = None
                        self.cuts += 1
                        self.cut()
                        return
                writer.write(piece)
                await writer.drain()
        writer.transport.abort()
