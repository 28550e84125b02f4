"""The cache's part of an engine without a model: it notes what it is asked, and answers plausibly or by a script."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from pathlib import Path

from sessile.server.engine.cache_messages import (
    CacheEvent,
    CacheEvents,
    CacheRequest,
    CacheResponse,
    ExportOutcome,
    ExportPath,
    ImportOutcome,
    ImportPath,
    PersistOutcome,
    PersistPath,
    ReleasePath,
    ResumeEstimate,
    ResumePath,
    RetainOutcome,
    RetainPath,
    SupersedePath,
    SuspendOutcome,
    SuspendPath,
)
from sessile.sessions.cache.retention import Verdict
from sessile.sessions.errors import SessileError

BLOCK = 16


class ScriptedCache:
    """``asked`` are all requests in order. ``will_answer`` scripts the next answer, or error, of a kind of request."""

    def __init__(self) -> None:
        self.asked: list[CacheRequest] = []
        self._answers: dict[type, deque[CacheResponse | SessileError]] = {}
        self._listeners: set[asyncio.Queue[CacheEvents | Exception]] = set()

    def will_answer(self, request: type, answer: CacheResponse | SessileError) -> None:
        self._answers.setdefault(request, deque()).append(answer)

    def happens(self, *events: CacheEvent, num_lost: int = 0) -> None:
        """Let all listeners hear of ``events``."""
        for queue in self._listeners:
            queue.put_nowait(CacheEvents(events=list(events), num_lost=num_lost))

    def stops_telling(self, error: Exception) -> None:
        """Let all listeners run into ``error`` of their own."""
        for queue in self._listeners:
            queue.put_nowait(error)

    async def retain(self, path: RetainPath) -> RetainOutcome:
        path.retention.validate()
        default = RetainOutcome(
            verdict=Verdict.ACCEPTED, pinned_tokens=len(path.token_ids), expires_in_s=path.retention.ttl_s
        )
        return self._reply(path, default)

    async def release(self, path: ReleasePath) -> None:
        self._reply(path, None)

    async def supersede(self, path: SupersedePath) -> None:
        self._reply(path, None)

    async def persist(self, path: PersistPath) -> PersistOutcome:
        return self._reply(path, PersistOutcome(tokens_by_tier={"disk": len(path.token_ids)}))

    async def suspend(self, path: SuspendPath) -> SuspendOutcome:
        num_tokens = len(path.token_ids)
        default = SuspendOutcome(tokens_by_tier={"disk": num_tokens}, device_blocks_given_back=num_tokens // BLOCK)
        return self._reply(path, default)

    async def resume(self, path: ResumePath) -> ResumeEstimate:
        default = ResumeEstimate(
            tokens_by_tier={"device": 0, "disk": len(path.token_ids)},
            tokens_to_compute=0,
            seconds=0.01,
            prefetching=True,
        )
        return self._reply(path, default)

    async def export_path(self, path: ExportPath) -> ExportOutcome:
        """Writes the number of tokens, in digits."""
        Path(path.file).write_text(str(len(path.token_ids)), encoding="utf-8")  # noqa: ASYNC240 - a moment, in a test
        return self._reply(path, ExportOutcome(tokens=len(path.token_ids), num_bytes=Path(path.file).stat().st_size))  # noqa: ASYNC240

    async def import_path(self, path: ImportPath) -> ImportOutcome:
        tokens = int(Path(path.file).read_text(encoding="utf-8"))  # noqa: ASYNC240 - a moment, in a test
        return self._reply(path, ImportOutcome(tokens=tokens, tokens_by_tier={"disk": tokens}))

    async def cache_events(self) -> AsyncGenerator[CacheEvents, None]:
        queue: asyncio.Queue[CacheEvents | Exception] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while True:
                told = await queue.get()
                if isinstance(told, Exception):
                    raise told
                yield told
        finally:
            self._listeners.discard(queue)

    def _reply(self, request, default):
        """What was scripted for this kind of request, else ``default``."""
        self.asked.append(request)
        scripted = self._answers.get(type(request))
        answer = scripted.popleft() if scripted else default
        if isinstance(answer, SessileError):
            raise answer
        return answer
