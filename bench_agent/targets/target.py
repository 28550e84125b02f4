"""A target: a server that is there, or one that is started for the run, with a driver to it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from ..driver.ask import Driver
from ..driver.dialects import Dialect, dialect_named
from ..driver.openai_http import OpenAiDriver
from ..driver.session_grpc import SessionDriver
from ..errors import TargetError
from ..metrics.process_usage import pid_of_listener
from ..report.record import ServerFacts
from .address import Address, parse_address
from .launchers import ServeRequest, launcher_named
from .presence import listens
from .probe import Identity, identify
from .server_process import ServerProcess

_LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """What the user says of the server: ``address`` or ``serve``. None: the server is asked, or it is not known.

    ``model`` is asked for in requests, ``model_name`` stands in the record. ``own_cache``: where the server can do it,
    this use of it finds nothing that others left in its cache.
    """

    address: str | None = None
    serve: str | None = None
    serve_flags: tuple[str, ...] = ()
    serve_python: str | None = None
    wire: str = "http"
    model: str | None = None
    dialect: str | None = None
    server_name: str | None = None
    server_version: str | None = None
    server_flags: tuple[str, ...] | None = None
    quantisation: str | None = None
    hardware: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    session_header: str | None = None
    tenant: str = ""
    timeout_s: float = 600.0
    model_name: str | None = None
    server_pid: int | None = None
    own_cache: bool = True
    server_start_s: float | None = None
    start_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A server that answers. ``pid``: of its process, when it runs on this machine and can be told; ``is_there`` asks
    whether anybody still listens."""

    facts: ServerFacts
    driver: Driver
    pid: int | None
    context_length: int | None
    is_there: Callable[[], Awaitable[bool]]


@asynccontextmanager
async def reach(spec: TargetSpec, folder: Path) -> AsyncIterator[Target]:
    """Start the server if asked to, find out who it is, and connect; at the end disconnect and stop it.

    Raises TargetError.
    """
    if (spec.address is None) == (spec.serve is None):
        raise TargetError("name one server", remedy="pass --target ADDRESS, or --serve NAME to have one started")
    process: ServerProcess | None = None
    address = None if spec.address is None else parse_address(spec.address)
    dialect = spec.dialect
    version, flags = spec.server_version, spec.server_flags
    if spec.serve is not None:
        launcher = launcher_named(spec.serve)
        request = ServeRequest(spec.model, spec.serve_flags, spec.wire, folder, spec.serve_python)
        plan = launcher.plan(request)
        process = ServerProcess(replace(plan, start_timeout_s=spec.start_timeout_s or plan.start_timeout_s))
        dialect = dialect or launcher.dialect
        version, flags = version or launcher.version(request), spec.serve_flags
        await process.start()
        address = parse_address(process.plan.address)
    assert address is not None
    try:
        async with _connected(spec, address, dialect, version, flags, process) as target:
            yield target
    finally:
        if process is not None:
            await process.stop()


def _http_driver(spec: TargetSpec, address: str, dialect: Dialect, found: Identity, nonce: str) -> OpenAiDriver:
    headers = spec.headers | ({"x-sessile-tenant": spec.tenant} if spec.tenant else {})
    extra = dict(spec.extra)
    if nonce and dialect.cold is not None:
        more_headers, more_extra = dialect.cold(nonce)
        headers, extra = {**more_headers, **headers}, {**more_extra, **extra}
    return OpenAiDriver(
        address,
        model=found.model if spec.serve else spec.model or found.model,
        dialect=dialect,
        timeout_s=spec.timeout_s,
        headers=headers,
        extra=extra,
        session_header=spec.session_header,
    )


def _without_folder(model: str | None) -> str | None:
    """A model's name in a record: where a file lies says something of a machine, and nothing of the model."""
    path = PurePath(model or "")
    return path.name if path.is_absolute() or path.suffix == ".gguf" else model


@asynccontextmanager
async def _connected(
    spec: TargetSpec,
    address: Address,
    dialect_name: str | None,
    version: str | None,
    flags: tuple[str, ...] | None,
    process: ServerProcess | None,
) -> AsyncIterator[Target]:
    found = await _identity(spec, address, process)
    dialect = dialect_named(dialect_name or found.dialect)
    apart = spec.own_cache and not spec.tenant and dialect.cold is not None and dialect.shares
    nonce = f"bench-{secrets.token_hex(6)}" if apart else ""
    driver: Driver
    if address.scheme == "grpc":
        driver = SessionDriver(address.netloc, tenant=spec.tenant or nonce, timeout_s=spec.timeout_s)
    else:
        driver = _http_driver(spec, address.url, dialect, found, nonce)
    facts = ServerFacts(
        name=spec.server_name or spec.serve or (None if dialect.name == "openai" else dialect.name),
        version=version or found.version,
        model=_without_folder(spec.model_name or spec.model or found.model),
        quantisation=spec.quantisation or found.dtype,
        flags=flags,
        address=address.shown,
        wire=driver.wire,
        dialect=dialect.name,
        start_s=spec.server_start_s if process is None else process.start_s,
        hardware=spec.hardware,
        own_cache=apart or spec.serve is not None,
    )
    try:
        pid = spec.server_pid or _pid(address.host, address.port, process)
        yield Target(facts, driver, pid, found.context_length, partial(listens, address))
    finally:
        await driver.close()


async def _identity(spec: TargetSpec, address: Address, process: ServerProcess | None) -> Identity:
    """gRPC servers are Sessile's; one that was started here is asked over HTTP."""
    if address.scheme == "grpc":
        if process is None:
            return Identity(dialect="sessile")
        return await identify(process.plan.ready_url.removesuffix("/ready"))
    return await identify(address.url, spec.headers or None)


def _pid(host: str, port: int | None, process: ServerProcess | None) -> int | None:
    if process is not None:
        return process.pid
    return pid_of_listener(port) if host in _LOCAL and port else None
