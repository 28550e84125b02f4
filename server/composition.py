"""The running server: its engine and its front, brought up, drained, and taken down again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from .address import address
from .config import ServerConfig
from .engine.client import EngineClient
from .engine.engine_config import EngineConfig
from .identity.access import Access
from .identity.certificates import Certificates
from .identity.exposure import check_exposure
from .identity.gate import Gate
from .identity.key_file import KeyFile
from .lifecycle import Lifecycle
from .model.source import resolve_model
from .places import allow_open_files, listen, prepare_data_dir
from .progress import StartProgress, start_progress
from .tasks import end

if TYPE_CHECKING:
    from .front import Front

logger = logging.getLogger(__name__)
_FILES_OF_OURS = 512  # databases, segments, sockets between our processes, libraries
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
    allow_open_files(config.http.max_connections + config.grpc.max_connections + _FILES_OF_OURS)
    access = open_access(config, time.monotonic)
    listen(config.server.host, config.grpc.port, "grpc").close()  # gRPC binds later: better told now
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(listen(config.server.host, config.http.port, "http")))
        with start_progress() as progress:
            running = await _unless_stopped(_start(config, lifecycle, listener, access, progress, stack), lifecycle)
        if running is not None:
            _announce(config, running, listener, time.monotonic() - started)
            await lifecycle.stopped()
            await _drain(running, lifecycle, config.server.drain_timeout_s)


@dataclass(frozen=True, slots=True)
class _Running:
    """A server that takes turns."""

    engine: EngineClient
    front: Front


async def _start(
    config: ServerConfig,
    lifecycle: Lifecycle,
    listener: socket.socket,
    access: Access,
    progress: StartProgress,
    stack: contextlib.AsyncExitStack,
) -> _Running:
    """Bring up the engine and, while it loads, the front."""
    source = await asyncio.to_thread(resolve_model, config.engine.model, None, progress)
    engine = EngineClient(_with_folders(config), progress, config.limits)
    stack.push_async_callback(engine.close)
    loading = asyncio.ensure_future(engine.start())
    stack.push_async_callback(end, loading)
    start_front = await asyncio.to_thread(_import_front)
    front = await start_front(config, source, engine, listener, access, lifecycle.check_admission, stack)
    await loading
    await front.report_health()
    return _Running(engine, front)


def _import_front() -> Callable[..., Coroutine[Any, Any, Front]]:
    """A second's work, beside the start of the engine's process."""
    from .front import start_front

    return start_front


def _with_folders(config: ServerConfig) -> EngineConfig:
    """The engine's part, with its folders beside the sessions unless they were put elsewhere."""
    folder = config.server.data_dir
    return msgspec.structs.replace(
        config.engine,
        disk_path=config.engine.disk_path or str(folder / "kv"),
        speculation_path=config.engine.speculation_path or str(folder / "speculation"),
    )


def open_access(config: ServerConfig, clock: Callable[[], float]) -> Access:
    """Keys and certificates, as configured. Raises ConfigError, also for a public address without keys."""
    config.auth.validate()
    config.tls.validate()
    gate = Gate(KeyFile(config.server.data_dir), config.auth.api_key, clock)
    check_exposure(config.server.host, gate)
    return Access(gate, Certificates.configured(config.tls))


async def _unless_stopped(work: Coroutine[Any, Any, _Result], lifecycle: Lifecycle) -> _Result | None:
    """The result of ``work``, or None if the server was told to stop before there was one."""
    working = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(lifecycle.stopped())
    await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    await end(stopped)
    if not working.done():
        await end(working)
        return None
    return working.result()


def _announce(config: ServerConfig, running: _Running, listener: socket.socket, seconds: float) -> None:
    info = running.engine.info
    logger.info(
        "ready after %.1f s: %s (%s, %s), %d tokens of KV, context %d",
        seconds,
        running.front.served.name,
        info.device,
        info.dtype,
        info.num_blocks * info.block_size,
        info.context_length,
    )
    host, scheme = config.server.host, "http" if config.tls.cert is None else "https"
    over_http, over_grpc = address(host, listener.getsockname()[1]), address(host, running.front.grpc_port)
    logger.info("HTTP on %s://%s (dashboard; APIs on /v1), gRPC on %s", scheme, over_http, over_grpc)


async def _drain(running: _Running, lifecycle: Lifecycle, timeout_s: float) -> None:
    """Wait for running turns, up to the timeout or the second signal; those still running then fail."""
    await running.front.report_health()
    waiting = asyncio.ensure_future(running.front.manager.drain())
    cancelled = asyncio.ensure_future(lifecycle.cancelled())
    await asyncio.wait((waiting, cancelled), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        left = running.front.manager.running.in_hand
        logger.warning("%d requests are still running and will fail", left)
        await running.engine.close()
        await asyncio.wait((waiting,), timeout=_LAST_WORDS_S)
    for task in (waiting, cancelled):
        await end(task)
    logger.info("stopped")
