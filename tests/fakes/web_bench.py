"""The HTTP application over a session manager and a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from manager_bench import Bench
from open_gate import open_gate
from served import served

from sessile.server.engine.cache_messages import CacheView
from sessile.server.engine.messages import EngineReady, EngineStats
from sessile.server.engine.supervisor import EngineState
from sessile.server.identity.gate import Gate
from sessile.server.observe.observatory import Observatory
from sessile.server.readiness import readiness
from sessile.server.text.answer_format import TextConfig, ToolFormat
from sessile.server.web.application import create_app
from sessile.server.web.batches_api.line_runner import LineRunner
from sessile.server.web.http_config import HttpConfig
from sessile.server.web.http_listener import ConnectionCounts
from sessile.server.web.names import ServedName
from sessile.server.web.parts import WebParts
from sessile.sessions.batches.config import BatchesConfig
from sessile.sessions.batches.service import Batches
from sessile.sessions.batches.store import BatchStore
from sessile.sessions.manager import SessionManager

HERMES = TextConfig(tool_parser=ToolFormat.HERMES)


@dataclass
class _Engine:
    bench: Bench

    @property
    def info(self) -> EngineReady:
        return self.bench.engine.info

    state: EngineState = EngineState.READY
    stats: EngineStats = field(default_factory=EngineStats)

    async def describe_cache(self, most_nodes: int) -> CacheView:
        return CacheView(nodes=(), tree_blocks=0, pinned_blocks=0, block_bytes=1, break_even_tokens={})


@dataclass
class WebBench:
    """Runs inside its context. ``text``: how the model's answers are read."""

    folder: Path
    text: TextConfig = HERMES
    gate: Gate = field(default_factory=open_gate)
    http: HttpConfig = field(default_factory=HttpConfig)
    batches_config: BatchesConfig = field(default_factory=BatchesConfig)

    def __enter__(self) -> WebBench:
        self.bench = Bench(self.folder)
        self.observatory = Observatory()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._batch_store.close()
        self.bench.stop()
        self.observatory.close()

    def restart(self) -> None:
        """Another process on the same data: the engine has lost its cache."""
        self._batch_store.close()
        self.bench.stop()
        self.bench.engine = type(self.bench.engine)()
        self._start()

    def _start(self) -> None:
        bench = self.bench
        bench.start()
        bench.manager.shutdown()
        bench.manager = SessionManager(
            bench.store,
            bench.engine,
            bench.tokenizer,
            bench.template,
            clock=bench.clock,
            steady=bench.clock,
            text_config=self.text,
        )
        engine: Any = _Engine(bench)
        self._batch_store = BatchStore(self.folder, self.batches_config)
        self.batches = Batches(self._batch_store, self.batches_config, bench.clock, max_line_bytes=20_000)
        self.parts = WebParts(
            turns=bench.manager,
            sessions=bench.manager,
            batches=self.batches,
            engine=engine,
            token_bytes=bench.tokenizer.token_bytes,
            served=ServedName("scripted", frozenset({"m", "default"})),
            http=self.http,
            gate=self.gate,
            check_admission=lambda: None,
            connections=ConnectionCounts,
            copies_fail=lambda: False,
            readiness=lambda: readiness(engine, lambda: None, lambda: bench.store.failure),
            version="1",
            started_at=0.0,
            observatory=self.observatory,
        )
        self.app = create_app(self.parts)

    async def start_batches(self) -> None:
        """Let batches run; they end with ``batches.aclose``."""
        await self.batches.start(LineRunner(self.parts))

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://sessile")

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """The application on a port of its own; gives its address."""
        async with served(self.app) as (host, port):
            yield f"http://{host}:{port}"

    def says(self, text: str) -> list[int]:
        """Script the next answer; its tokens."""
        said = [*self.bench.tokens(text), self.bench.engine.eos_token_id]
        self.bench.engine.will_say(said)
        return said

    @property
    def prompt(self) -> list[int]:
        """The tokens of the last turn's prompt."""
        return self.bench.engine.submitted[-1].token_ids

    @property
    def shown(self) -> str:
        """The last turn's prompt as text."""
        return self.bench.shown(self.prompt)
