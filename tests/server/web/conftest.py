"""The HTTP application on scripted turns: no engine, no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from open_gate import open_gate
from web_bench import WebBench

from sessile.server.engine.cache_messages import CacheView
from sessile.server.engine.grammar import Grammar
from sessile.server.engine.messages import (
    EngineReady,
    EngineStats,
    FinishReason,
    TokenLogprobs,
    TokensBySource,
    TurnUsage,
)
from sessile.server.engine.supervisor import EngineState
from sessile.server.identity.gate import Gate
from sessile.server.observe.observatory import Observatory
from sessile.server.readiness import readiness
from sessile.server.web.application import create_app
from sessile.server.web.http_config import HttpConfig
from sessile.server.web.http_listener import ConnectionCounts
from sessile.server.web.names import ServedName
from sessile.server.web.parts import WebParts
from sessile.sessions.batches.counts import BatchCounts
from sessile.sessions.cache.tree_view import TreeNode
from sessile.sessions.errors import SessileError, StoreError
from sessile.sessions.manager.requests import CompletionRequest
from sessile.sessions.manager.turn_events import StopCause, TextDelta, TurnEvent, TurnFinished

SOURCES = TokensBySource(device=20, host=3, disk=2, shared=1, in_flight=4, computed=10)
USAGE = TurnUsage(prompt_tokens=40, completion_tokens=3, tokens_by_source=SOURCES, queue_s=0.25, prefill_s=0.5)
FINISHED = TurnFinished(finish_reason=FinishReason.STOP, stop_cause=StopCause.END_OF_TURN, usage=USAGE)
LOGPROBS = TokenLogprobs(-0.5, (1, 2), (-0.5, -1.5))
Step = TurnEvent | Exception | asyncio.Event


def deltas(*texts: str, logprobs: bool = False) -> list[Step]:
    found = (LOGPROBS,) if logprobs else ()
    return [TextDelta(text=text, token_ids=(index + 1,), logprobs=found) for index, text in enumerate(texts)]


@dataclass
class ScriptedTurns:
    """Plays ``script`` for each turn: events are yielded, exceptions raised, and asyncio events waited for."""

    script: Sequence[Step] = field(default_factory=lambda: [*deltas("Hel", "", "lo"), FINISHED])
    requests: list[CompletionRequest] = field(default_factory=list)
    closed: int = 0
    checked: list[tuple[Grammar | None, str]] = field(default_factory=list)
    grammar_error: SessileError | None = None

    async def check_grammar(self, grammar: Grammar | None, field: str) -> None:
        self.checked.append((grammar, field))
        if self.grammar_error is not None:
            raise self.grammar_error

    async def complete(self, request: CompletionRequest) -> AsyncIterator[TurnEvent]:
        self.requests.append(request)
        try:
            for step in self.script:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    yield step
        finally:
            self.closed += 1


@dataclass
class ScriptedEngine:
    error: SessileError | None = None
    state: EngineState = EngineState.READY
    stats: EngineStats = field(
        default_factory=lambda: EngineStats(running=2, prompt_tokens_by_source=SOURCES, generated_tokens=77)
    )

    async def describe_cache(self, most_nodes: int) -> CacheView:
        nodes = (
            TreeNode(
                parent=-1, tenant="", start=0, tokens=32, users=1, pins=0, owners=("s",), superseded=False,
                idle_s=1.5, hidden_children=0,
            ),
        )  # fmt: skip
        return CacheView(
            nodes=nodes[:most_nodes], tree_blocks=2, pinned_blocks=0, block_bytes=100, break_even_tokens={"host": 48}
        )

    @property
    def info(self) -> EngineReady:
        if self.error is not None:
            raise self.error
        return EngineReady(
            model="tiny",
            fingerprint="f" * 64,
            device="cpu",
            dtype="float32",
            vocab_size=99,
            context_length=512,
            block_size=16,
            num_blocks=64,
            kernels={},
        )


class WordBytes:
    """Token 7 is ``<7>``; token 99 is half a character."""

    special_ids = frozenset[int]()
    strips_first_space = False

    def __getitem__(self, token_id: int) -> bytes:
        return b"\xf0\x9f" if token_id == 99 else f"<{token_id}>".encode()


class NoBatches:
    def counts(self) -> BatchCounts:
        return BatchCounts(unfinished={}, lines_left=0, ended={}, lines_succeeded=0, lines_failed=0)


@dataclass
class Stage:
    """All parts of an application under test."""

    turns: ScriptedTurns = field(default_factory=ScriptedTurns)
    engine: ScriptedEngine = field(default_factory=ScriptedEngine)
    draining: SessileError | None = None
    store_failure: StoreError | None = None
    observatory: Observatory = field(default_factory=Observatory)
    gate: Gate = field(default_factory=open_gate)
    sessions: Any = None  # for tests of sessions: a manager
    batches: Any = field(default_factory=NoBatches)

    def check_admission(self) -> None:
        if self.draining is not None:
            raise self.draining

    def parts(self) -> WebParts:
        return WebParts(
            turns=self.turns,
            sessions=self.sessions,
            batches=self.batches,
            engine=self.engine,
            token_bytes=WordBytes(),
            served=ServedName("tiny", frozenset({"m", "default"})),
            http=HttpConfig(max_body_bytes=200_000),
            gate=self.gate,
            check_admission=self.check_admission,
            connections=ConnectionCounts,
            copies_fail=lambda: False,
            readiness=lambda: readiness(self.engine, self.check_admission, lambda: self.store_failure),
            version="1.2.3",
            started_at=1_700_000_000.0,
            observatory=self.observatory,
        )


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.observatory.close()


@pytest.fixture(scope="session")
def web_parts_of() -> Callable[..., WebParts]:
    """Makes the parts of an application on an engine and an observatory."""
    return lambda engine, observatory: Stage(engine=engine, observatory=observatory).parts()


@pytest.fixture
def make_deltas() -> Callable[..., list[Step]]:
    return deltas


@pytest.fixture
def finished() -> TurnFinished:
    return FINISHED


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(stage.parts()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://sessile") as client:
        yield client


@pytest.fixture
def chat_body() -> dict[str, object]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebBench]:
    """The application over a whole session manager."""
    with WebBench(tmp_path / "data") as web:
        yield web


@pytest.fixture
async def http(web: WebBench) -> AsyncIterator[httpx.AsyncClient]:
    async with web.client() as client:
        yield client
