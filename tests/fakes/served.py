"""An application behind a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.types import ASGIApp

from sessile.server.web.http_config import HttpConfig
from sessile.server.web.http_protocol import bounded_protocol


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the tests."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def served(app: ASGIApp, bounds: HttpConfig | None = None) -> AsyncIterator[tuple[str, int]]:
    """``app`` on a port of its own, in whose connections ``bounds`` hold, if any are given; gives host and port."""
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", loop="none")
    if bounds is not None:
        config.http, config.timeout_keep_alive = bounded_protocol(bounds), bounds.keep_alive_s
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = _Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            await serving
