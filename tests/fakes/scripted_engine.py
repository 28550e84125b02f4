"""An engine without a model: what it says is a function of the tokens it is given, or a script."""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from scripted_cache import ScriptedCache

from sessile.server.engine.messages import (
    EngineReady,
    FinishReason,
    MissedTokens,
    SubmitTurn,
    TokenLogprobs,
    TokensBySource,
    TurnOutput,
    TurnUsage,
)
from sessile.sessions.errors import EngineError, SessileError


@dataclass
class Script:
    """What the next turn says. ``tokens_a_step`` of them come at once; ``fail_after`` tokens the engine dies."""

    token_ids: list[int]
    tokens_a_step: int = 1
    fail_after: int | None = None
    error: SessileError = field(default_factory=lambda: EngineError("the engine died", retry_after_s=0.5))
    gate: asyncio.Event | None = None  # waited for before each token but the first


class ScriptedEngine(ScriptedCache):
    """Keeps to the contract of the engine's client: the last output has reason and usage, closing aborts."""

    def __init__(
        self,
        *,
        vocab_size: int = 258,
        eos_token_id: int = 257,
        context_length: int = 4096,
        fingerprint: str = "weights-1",
    ) -> None:
        super().__init__()
        self.ready: EngineReady | None = EngineReady(
            model="scripted",
            fingerprint=fingerprint,
            device="cpu",
            dtype="float32",
            vocab_size=vocab_size,
            context_length=context_length,
            block_size=16,
            num_blocks=1000,
            kernels={},
        )
        self.eos_token_id = eos_token_id
        self.scripts: deque[Script] = deque()
        self.submitted: list[SubmitTurn] = []
        self.aborted: list[str] = []
        self.missed = MissedTokens()
        self.running: set[str] = set()
        self.idle = asyncio.Event()
        self.idle.set()
        self._cached: dict[str, list[list[int]]] = {}
        self._abort_requested: set[str] = set()

    @property
    def info(self) -> EngineReady:
        if self.ready is None:
            raise EngineError("the engine is restarting", retry_after_s=0.5)
        return self.ready

    def will_say(self, token_ids: Sequence[int], **options: object) -> Script:
        """Script the next turn that has no script yet."""
        script = Script(list(token_ids), **options)  # type: ignore[arg-type]
        self.scripts.append(script)
        return script

    async def abort(self, turn_id: str) -> None:
        self._abort_requested.add(turn_id)

    async def generate(self, turn: SubmitTurn) -> AsyncGenerator[TurnOutput, None]:
        assert self.ready is not None
        assert len(turn.token_ids) < self.ready.context_length
        self.submitted.append(turn)
        self.running.add(turn.turn_id)
        self.idle.clear()
        finished = False
        try:
            async with aclosing(self._outputs(turn)) as outputs:
                async for output in outputs:
                    finished = output.finish_reason is not None
                    yield output
        finally:
            self.running.discard(turn.turn_id)
            if not self.running:
                self.idle.set()
            if not finished:
                self.aborted.append(turn.turn_id)

    async def _outputs(self, turn: SubmitTurn) -> AsyncGenerator[TurnOutput, None]:
        script = self.scripts.popleft() if self.scripts else Script(self._answer(turn.token_ids))
        said = script.token_ids
        limit = self.info.context_length - len(turn.token_ids)
        most = min(limit, turn.sampling.max_tokens or limit)
        ends = {*turn.sampling.stop_token_ids, *(() if turn.sampling.ignore_eos else turn.eos_token_ids)}
        reason = FinishReason.LENGTH if len(said) > most or said[-1] not in ends else FinishReason.STOP
        said = said[:most]
        sources = self._sources(turn)
        for start in range(0, len(said), script.tokens_a_step):
            if script.gate is not None and start:
                await script.gate.wait()
            await asyncio.sleep(0)
            if script.fail_after is not None and start >= script.fail_after:
                raise script.error
            if turn.turn_id in self._abort_requested:
                yield self._output(turn, [], FinishReason.ABORTED, start, sources)
                return
            token_ids = said[start : start + script.tokens_a_step]
            end = start + len(token_ids)
            if end == len(said):
                self._cached.setdefault(turn.cache_salt, []).append([*turn.token_ids, *said])
            yield self._output(turn, token_ids, reason if end == len(said) else None, end, sources)

    def _output(
        self, turn: SubmitTurn, token_ids: list[int], reason: FinishReason | None, sampled: int, sources: TokensBySource
    ) -> TurnOutput:
        usage = None
        if reason is not None:
            usage = TurnUsage(
                prompt_tokens=len(turn.token_ids),
                completion_tokens=sampled,
                tokens_by_source=sources,
                reusable_tokens=sources.cached + self.missed.total,
                missed=self.missed,
                prefill_s=0.01,
            )
        logprobs = None
        if turn.sampling.logprobs is not None:
            logprobs = [TokenLogprobs(-0.5, (token_id,), (-0.5,)) for token_id in token_ids]
        return TurnOutput(
            turn_id=turn.turn_id, token_ids=token_ids, logprobs=logprobs, finish_reason=reason, usage=usage
        )

    def _sources(self, turn: SubmitTurn) -> TokensBySource:
        """The longest prefix of an earlier turn is cached, except for the last token, which must be computed."""
        hit = max((_common_prefix(seen, turn.token_ids) for seen in self._cached.get(turn.cache_salt, [])), default=0)
        hit = min(hit, len(turn.token_ids) - 1)
        return TokensBySource(device=hit, computed=len(turn.token_ids) - hit)

    def _answer(self, token_ids: Sequence[int]) -> list[int]:
        """Four to eleven lower-case letters that depend on every token, and the end of the turn."""
        digest = hashlib.blake2b(array("i", token_ids).tobytes(), digest_size=16).digest()
        letters = [64 + byte % 26 for byte in digest[: 4 + digest[-1] % 8]]
        return [*letters, self.eos_token_id]


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
