"""The running server: its parts, built in order, joined, and taken down again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import uvicorn

from ..sessions.manager import SessionManager
from ..sessions.store import SessionStore
from .command_line import installed_version
from .config import ServerConfig
from .engine.client import EngineClient
from .lifecycle import Lifecycle
from .model.source import ModelSource, resolve_model
from .places import listen, prepare_data_dir
from .progress import StartProgress, start_progress
from .rpc.rpc_server import RpcServer
from .text.chat_template import ChatTemplate
from .text.tokenizer import Tokenizer
from .text.tokenizer_files import load_chat_template, load_tokenizer
from .web.application import create_app
from .web.names import ServedName
from .web.parts import WebParts

logger = logging.getLogger(__name__)
_LAST_WORDS_S = 2  # for the answers of turns that were cancelled
_Result = TypeVar("_Result")


async def run_server(config: ServerConfig) -> None:
    """Serve until a signal says to stop, then drain.

    Raises:
        ConfigError: a port is in use, or the data folder cannot be written.
        ModelError, StoreError, EngineError: the model, the sessions or the engine cannot be brought up.
    """
    started = time.monotonic()
    lifecycle = Lifecycle()
    lifecycle.install_signals()
    prepare_data_dir(config.server.data_dir)
    listen(config.server.host, config.grpc.port, "grpc").close()  # gRPC binds later: better told now
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(listen(config.server.host, config.http.port, "http")))
        with start_progress() as progress:
            running = await _unless_stopped(_start(config, lifecycle, listener, progress, stack), lifecycle)
        if running is not None:
            _announce(config, running, listener, time.monotonic() - started)
            await lifecycle.stopped()
            await _drain(running, lifecycle, config.server.drain_timeout_s)


@dataclass(frozen=True, slots=True)
class _Running:
    """What draining needs of a started server."""

    manager: SessionManager
    engine: EngineClient
    rpc: RpcServer
    served: ServedName
    grpc_port: int


async def _start(
    config: ServerConfig,
    lifecycle: Lifecycle,
    listener: socket.socket,
    progress: StartProgress,
    stack: contextlib.AsyncExitStack,
) -> _Running:
    """Bring up all parts; ``stack`` takes them down in the other order. HTTP answers while the model loads."""
    source, tokenizer, template = await asyncio.to_thread(_load_text, config.engine.model, progress)
    store = await asyncio.to_thread(SessionStore, config.server.data_dir)
    stack.callback(store.close)
    engine = EngineClient(config.engine, progress)
    stack.push_async_callback(engine.close)
    manager = SessionManager(store, engine, tokenizer, template)
    stack.callback(manager.shutdown)
    served = served_name(config, source)
    parts = WebParts(
        turns=manager,
        engine=engine,
        token_bytes=tokenizer.token_bytes,
        served=served,
        http=config.http,
        check_admission=lifecycle.check_admission,
        version=installed_version(),
        started_at=time.time(),
    )
    await stack.enter_async_context(_http(parts, listener, config))
    rpc = RpcServer(manager, host=config.server.host, port=config.grpc.port)
    grpc_port = await rpc.start()
    stack.push_async_callback(rpc.stop, _LAST_WORDS_S)
    await engine.start()
    await rpc.set_serving()
    return _Running(manager, engine, rpc, served, grpc_port)


async def _unless_stopped(work: Coroutine[Any, Any, _Result], lifecycle: Lifecycle) -> _Result | None:
    """The result of ``work``, or None if the server was told to stop before there was one."""
    working = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(lifecycle.stopped())
    await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not working.done():
        working.cancel()
        await asyncio.wait((working,))
        return None
    return working.result()


def _announce(config: ServerConfig, running: _Running, listener: socket.socket, seconds: float) -> None:
    host = config.server.host
    info = running.engine.info
    logger.info(
        "ready after %.1f s: %s (%s, %s), %d tokens of KV, context %d",
        seconds,
        running.served.name,
        info.device,
        info.dtype,
        info.num_blocks * info.block_size,
        info.context_length,
    )
    shown = f"[{host}]" if ":" in host else host
    logger.info("HTTP on http://%s:%d, gRPC on %s:%d", shown, listener.getsockname()[1], shown, running.grpc_port)


async def _drain(running: _Running, lifecycle: Lifecycle, timeout_s: float) -> None:
    """Wait for running turns, up to the timeout or the second signal; those still running then fail."""
    await running.rpc.set_not_serving()
    waiting = asyncio.ensure_future(running.manager.drain())
    cancelled = asyncio.ensure_future(lifecycle.cancelled())
    await asyncio.wait((waiting, cancelled), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        left = running.manager.running.in_hand
        logger.warning("%d requests are still running and will fail", left)
        await running.engine.close()
        await asyncio.wait((waiting,), timeout=_LAST_WORDS_S)
    for task in (waiting, cancelled):
        task.cancel()
    logger.info("stopped")


class _HttpServer(uvicorn.Server):
    """uvicorn, without its own signal handlers: the lifecycle has them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def _http(parts: WebParts, listener: socket.socket, config: ServerConfig) -> AsyncIterator[None]:
    server = _HttpServer(
        uvicorn.Config(
            create_app(parts),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=config.log.requests,
            server_header=False,
            backlog=config.http.backlog,
            timeout_graceful_shutdown=_LAST_WORDS_S,
        )
    )
    serving = asyncio.ensure_future(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


def served_name(config: ServerConfig, source: ModelSource) -> ServedName:
    """The model's name in the API: the configured one or its own, and what else means it."""
    aliases = {*config.names.model_aliases, source.name, config.engine.model or source.name}
    name = config.names.served_model_name or source.name
    return ServedName(name, frozenset(aliases - {name, ""}))


def _load_text(model: str | None, progress: StartProgress) -> tuple[ModelSource, Tokenizer, ChatTemplate]:
    source = resolve_model(model, None, progress)
    progress("load the tokenizer", 0.0)
    tokenizer = load_tokenizer(source)
    return source, tokenizer, load_chat_template(source, tokenizer)
