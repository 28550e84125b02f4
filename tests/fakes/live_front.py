"""A whole front in process: HTTP, session manager, observatory; behind it a scripted engine that is watched."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from byte_text import byte_tokenizer, chatml_template
from open_gate import open_gate
from scripted_engine import ScriptedEngine

from sessile.server.engine.cache_messages import CacheView
from sessile.server.engine.messages import AdmittedTurn, EngineStats, SubmitTurn, TurnOutput
from sessile.server.engine.supervisor import EngineState
from sessile.server.engine.turn_watch import observed
from sessile.server.observe.config import ObserveConfig
from sessile.server.observe.observatory import Observatory
from sessile.server.observe.opening import reading_of
from sessile.server.readiness import readiness
from sessile.server.text.answer_format import TextConfig
from sessile.server.web.application import create_app
from sessile.server.web.http_config import HttpConfig
from sessile.server.web.http_listener import ConnectionCounts
from sessile.server.web.names import ServedName
from sessile.server.web.parts import WebParts
from sessile.sessions.batches.config import BatchesConfig
from sessile.sessions.batches.service import Batches
from sessile.sessions.batches.store import BatchStore
from sessile.sessions.manager.manager import SessionManager
from sessile.sessions.store import SessionStore


class WatchedEngine(ScriptedEngine):
    """Tells an observatory of its turns, as the engine's client does."""

    state = EngineState.READY
    stats = EngineStats()
    observatory: Observatory

    def generate(self, turn: SubmitTurn) -> AsyncGenerator[TurnOutput, None]:
        return observed(self._counted, turn, self.observatory)

    async def _counted(self, turn: SubmitTurn) -> AsyncGenerator[TurnOutput, None]:
        sources = self._sources(turn)
        self.observatory.turn_admitted(
            AdmittedTurn(
                turn_id=turn.turn_id,
                tokens_by_source=sources,
                reusable_tokens=sources.cached + self.missed.total,
                missed=self.missed,
            )
        )
        async with aclosing(super().generate(turn)) as outputs:
            async for output in outputs:
                if output.finish_reason is not None:
                    self.observatory.explainer.settle(30)  # a model takes longer than the explanation
                yield output

    async def describe_cache(self, most_nodes: int) -> CacheView:
        return CacheView(nodes=(), tree_blocks=0, pinned_blocks=0, block_bytes=1, break_even_tokens={})


@dataclass
class LiveFront:
    """The running parts."""

    client: httpx.AsyncClient
    engine: WatchedEngine
    observatory: Observatory
    manager: SessionManager

    async def chat(self, body: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        """Send a chat request; returns the answer's usage."""
        headers = {} if session is None else {"x-session-id": session}
        answer = await self.client.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        assert isinstance(usage, dict)
        return usage


@asynccontextmanager
async def live_front(
    folder: Path,
    *,
    template: str | None = None,
    names: tuple[str, ...] = (),
    vocab_size: int = 258,
    most_open_sessions: int = 0,
    **observe: Any,
) -> AsyncIterator[LiveFront]:
    """A front with its own store; ``names``: further names of its one model."""
    store = SessionStore(folder)
    engine = WatchedEngine(context_length=1 << 17, vocab_size=vocab_size)
    tokenizer = byte_tokenizer()
    chat_template = chatml_template() if template is None else chatml_template(template)
    reading = reading_of(tokenizer, chat_template, TextConfig())
    observatory = Observatory(ObserveConfig(**observe), model="scripted", reading=reading)
    engine.observatory = observatory
    manager = SessionManager(
        store,
        engine,
        tokenizer,
        chat_template,
        model_aliases={"scripted", *names},
        observer=observatory,
        most_open_sessions=most_open_sessions,
    )
    batch_store = BatchStore(folder, BatchesConfig())
    batches = Batches(batch_store, BatchesConfig(), time.time, max_line_bytes=HttpConfig().max_body_bytes)
    parts = WebParts(
        turns=manager,
        sessions=manager,
        batches=batches,
        engine=engine,
        token_bytes=tokenizer.token_bytes,
        served=ServedName("scripted", frozenset(names)),
        http=HttpConfig(),
        check_admission=lambda: None,
        connections=ConnectionCounts,
        copies_fail=lambda: False,
        readiness=lambda: readiness(engine, lambda: None, lambda: store.failure),
        version="0",
        started_at=0.0,
        observatory=observatory,
        gate=open_gate(),
    )
    transport = httpx.ASGITransport(create_app(parts))
    async with httpx.AsyncClient(transport=transport, base_url="http://sessile", timeout=60) as client:
        yield LiveFront(client, engine, observatory, manager)
    batch_store.close()
    await manager.aclose()
    observatory.close()
    store.close()
