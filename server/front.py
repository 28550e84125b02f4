"""The front of the server: sessions, HTTP and gRPC, joined to an engine.

Imported while the engine loads its model: both take seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn

from ..sessions.background import keep_doing
from ..sessions.batches.service import Batches
from ..sessions.batches.store import BatchStore
from ..sessions.copies.copies import DataCopies
from ..sessions.copies.thread import CopyThread
from ..sessions.manager import SessionManager
from ..sessions.store import SessionStore
from .command_line import installed_version
from .config import ServerConfig
from .engine.client import EngineClient
from .identity.access import Access
from .identity.certificates import Certificates
from .identity.reload import CertificateWatch
from .model.source import ModelSource
from .observe.opening import open_observatory
from .readiness import Readiness, readiness
from .rpc.rpc_server import RpcServer
from .tasks import end
from .text.chat_template import ChatTemplate
from .text.tokenizer import Tokenizer
from .text.tokenizer_files import load_chat_template, load_tokenizer
from .web.application import create_app
from .web.batches_api.line_runner import LineRunner
from .web.http_listener import HttpListener
from .web.http_protocol import bounded_protocol
from .web.names import ServedName
from .web.parts import WebParts

LAST_WORDS_S = 2  # for the answers of turns that were cancelled
_LOOK_FOR_IDLE_EVERY_S = 1.0
_TELL_HEALTH_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Front:
    """A started front. ``grpc_port`` is the one that was taken, ``readiness`` says how things stand at the moment."""

    manager: SessionManager
    rpc: RpcServer
    served: ServedName
    grpc_port: int
    readiness: Callable[[], Readiness]

    async def report_health(self) -> None:
        """Tell gRPC's health service now, which is told of changes twice a second otherwise."""
        await self.rpc.report(self.readiness())


async def start_front(
    config: ServerConfig,
    source: ModelSource,
    engine: EngineClient,
    listener: socket.socket,
    access: Access,
    check_admission: Callable[[], None],
    stack: contextlib.AsyncExitStack,
) -> Front:
    """Bring up all parts; ``stack`` takes them down in the other order. HTTP answers while the engine loads.

    Raises:
        ModelError: the tokenizer or the chat template cannot be used.
        StoreError: the sessions cannot be read or written.
        ConfigError: the port of gRPC is in use.
    """
    tokenizer, template = await asyncio.to_thread(_load_text, source)
    store = await asyncio.to_thread(SessionStore, config.server.data_dir)
    stack.callback(store.close)
    copying = CopyThread(DataCopies(config.server.data_dir))
    stack.push_async_callback(copying.aclose)
    served = served_name(config, source)
    observatory = open_observatory(config.observe, served.name, installed_version(), tokenizer, template, config.text)
    stack.callback(observatory.close)
    engine.listen(observatory)
    manager = SessionManager(
        store,
        engine,
        tokenizer,
        template,
        model_aliases={served.name, *served.aliases},
        text_config=config.text,
        grammars=config.grammar,
        persistence=config.sessions.policy(),
        keep_conversations=config.sessions.conversations,
        observer=observatory,
        most_open_sessions=config.limits.open_sessions,
        export_key=Path(config.sessions.export_key) if config.sessions.export_key else None,
    )
    stack.push_async_callback(manager.aclose)
    await manager.care.recall()
    manager.care.idle.start(_LOOK_FOR_IDLE_EVERY_S)
    ready = partial(readiness, engine, check_admission, lambda: store.failure)
    batches = await _open_batches(config, stack)
    door = HttpListener(listener, config.http.max_connections, config.http.send_timeout_s)
    parts = WebParts(
        turns=manager,
        sessions=manager,
        batches=batches,
        engine=engine,
        token_bytes=tokenizer.token_bytes,
        served=served,
        http=config.http,
        gate=access.gate,
        check_admission=check_admission,
        readiness=ready,
        connections=door.counts,
        copies_fail=lambda: copying.is_failing,
        version=installed_version(),
        started_at=time.time(),
        observatory=observatory,
    )
    await stack.enter_async_context(serve_http(parts, door, config, access.certificates))
    await batches.start(LineRunner(parts))
    following = asyncio.create_task(
        keep_doing("events of the cache are not counted", partial(observatory.kv_events.follow, engine.cache_events))
    )
    stack.push_async_callback(end, following)
    rpc = RpcServer(manager, access.gate, config.grpc, host=config.server.host, certificates=access.certificates)
    grpc_port = await rpc.start()
    stack.push_async_callback(rpc.stop, LAST_WORDS_S)
    telling = asyncio.create_task(keep_doing("gRPC's health service is not told", partial(_tell_health, rpc, ready)))
    stack.push_async_callback(end, telling)
    return Front(manager, rpc, served, grpc_port, ready)


async def _tell_health(rpc: RpcServer, ready: Callable[[], Readiness]) -> None:
    """Keep gRPC's health service at what ``/ready`` says."""
    told: Readiness | None = None
    while True:
        now = ready()
        if now != told:
            told = now
            await rpc.report(now)
        await asyncio.sleep(_TELL_HEALTH_EVERY_S)


async def _open_batches(config: ServerConfig, stack: contextlib.AsyncExitStack) -> Batches:
    store = await asyncio.to_thread(BatchStore, config.server.data_dir, config.batches)
    stack.callback(store.close)
    batches = Batches(store, config.batches, time.time, max_line_bytes=config.http.max_body_bytes)
    stack.push_async_callback(batches.aclose)
    return batches


class _HttpServer(uvicorn.Server):
    """uvicorn, without its own signal handlers: the lifecycle has them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serve_http(
    parts: WebParts, listener: HttpListener, config: ServerConfig, certificates: Certificates | None
) -> AsyncIterator[None]:
    """Answer HTTP on ``listener`` until the end of the context."""
    context = None if certificates is None else certificates.ssl_context()
    protocol = bounded_protocol(config.http)
    how = uvicorn.Config(
        create_app(parts),
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=config.log.requests,
        server_header=False,
        timeout_keep_alive=config.http.keep_alive_s,
        timeout_graceful_shutdown=LAST_WORDS_S,
    )
    how.load()
    server = _HttpServer(how)
    serving = asyncio.ensure_future(server.serve([]))  # on no socket of its own
    listener.start(lambda: protocol(how, server.server_state, {}), context, backlog=config.http.backlog)
    watching = (
        None
        if certificates is None or context is None
        else asyncio.ensure_future(
            keep_doing("certificates are not watched", partial(CertificateWatch(certificates).run, context))
        )
    )
    try:
        yield
    finally:
        if watching is not None:
            await end(watching)
        listener.stop()
        server.should_exit = True
        await serving


def served_name(config: ServerConfig, source: ModelSource) -> ServedName:
    """The model's name in the API: the configured one or its own, and what else means it."""
    aliases = {*config.names.model_aliases, source.name, config.engine.model or source.name}
    name = config.names.served_model_name or source.name
    return ServedName(name, frozenset(aliases - {name, ""}))


def _load_text(source: ModelSource) -> tuple[Tokenizer, ChatTemplate]:
    tokenizer = load_tokenizer(source)
    return tokenizer, load_chat_template(source, tokenizer)
