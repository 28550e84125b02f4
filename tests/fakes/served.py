"""An application behind a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.types import ASGIApp


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the tests."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def served(app: ASGIApp, http: type[asyncio.Protocol] | None = None) -> AsyncIterator[tuple[str, int]]:
    """``app`` on a port of its own; gives host and port. ``http``: another protocol than uvicorn's own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, http=http or "auto", log_config=None, lifespan="off", ws="none", loop="none")
        server = _Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            await serving
