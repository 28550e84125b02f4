"""A whole front on a loopback port, with a scripted engine behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from byte_text import byte_tokenizer, chatml_template
from open_gate import open_gate
from scripted_engine import ScriptedEngine

from sessile.server.client import AsyncSessionClient, RetryPolicy
from sessile.server.readiness import Readiness, ServerState
from sessile.server.rpc.grpc_config import GrpcConfig
from sessile.server.rpc.rpc_server import RpcServer
from sessile.sessions.manager.manager import SessionManager
from sessile.sessions.store import SessionStore


@dataclass
class Sleeps:
    """Takes the place of waiting: remembers for how long, and runs ``during`` instead."""

    seconds: list[float] = field(default_factory=list)
    during: list[object] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if self.during:
            action = self.during.pop(0)
            await action()  # type: ignore[operator]


@dataclass
class Front:
    """The parts of a running front."""

    folder: Path
    engine: ScriptedEngine = field(default_factory=ScriptedEngine)
    sleeps: Sleeps = field(default_factory=Sleeps)
    port: int = 0
    bounds: GrpcConfig = field(default_factory=GrpcConfig)

    async def start(self) -> None:
        self.store = SessionStore(self.folder)
        self.manager = SessionManager(self.store, self.engine, byte_tokenizer(), chatml_template())
        self.server = RpcServer(self.manager, open_gate(), msgspec.structs.replace(self.bounds, port=self.port))
        self.port = await self.server.start()
        await self.server.report(Readiness(state=ServerState.READY, reason=""))

    async def stop(self) -> None:
        await self.server.stop(0)
        self.manager.shutdown()
        self.store.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self, tenant: str = "", **options: object) -> AsyncSessionClient:
        retry = RetryPolicy(sleep=self.sleeps, random=lambda: 0.0)
        return AsyncSessionClient(self.target, tenant=tenant, retry=retry, **options)  # type: ignore[arg-type]


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    front = Front(tmp_path / "data")
    await front.start()
    yield front
    await front.stop()
