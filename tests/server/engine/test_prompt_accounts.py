"""Prompt tokens are counted once, by source, against recounts that know nothing of the engine.

Replays of recorded agents go through the real scheduler, tree and pool. Beside them runs a simulator of a few lines:
what was ever sent is a list, the pool is a trie of blocks in the order of their use. Both must say the same numbers.
"""

from __future__ import annotations

import bisect
import itertools
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from checksum_model import VOCAB, ChecksumModel
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import recordings

from sessile.server.engine.cache_messages import CacheCall, RetainPath
from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.messages import AdmittedTurn, MissedTokens, SubmitTurn, TokensBySource, TurnOutput
from sessile.server.engine.sampling_params import SamplingParams
from sessile.sessions.cache.retention import Retention

BLOCK = 16
BLOCK_BYTES = 2 * BLOCK * 2 * 4
ALL_TRACES = bool(os.environ.get("SESSILE_ALL_TRACES"))
EIGHT_AGENTS = ("473e", "6a12", "7f6a", "d948", "2e9e", "abe6", "ae5b", "c7d0")


class RecordedModel(ChecksumModel):
    """Says what the recording says, and counts what it computed."""

    max_position = 1 << 15

    def __init__(self) -> None:
        super().__init__()
        self.says: Iterator[int] = iter(())

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        token = next(self.says)
        return torch.nn.functional.one_hot(torch.full((len(hidden),), token), VOCAB).float()


class Engine:
    """An engine core, one turn after another."""

    def __init__(self, num_blocks: int, model: ChecksumModel | None = None, **config: int) -> None:
        self.model = model or RecordedModel()
        self.core = EngineCore(
            EngineConfig(kv_memory_bytes=num_blocks * BLOCK_BYTES, **config),
            self.model,
            torch.device("cpu"),
            clock=itertools.count().__next__,
        )
        self.admitted: list[AdmittedTurn] = []
        self.last: dict[str, TurnOutput] = {}

    def submit(
        self, turn_id: str, prompt: list[int], max_tokens: int, salt: str = "", logged: int = 0, owner: str = ""
    ) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        self.core.submit(
            SubmitTurn(
                turn_id=turn_id,
                token_ids=prompt,
                sampling=sampling,
                cache_salt=salt,
                logged_tokens=logged,
                owner=owner,
            )
        )

    def step(self) -> None:
        for output in self.core.step():
            if output.finish_reason is not None:
                self.last[output.turn_id] = output
        self.admitted += self.core.take_admitted()

    def run(self) -> None:
        for _ in range(50_000):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("the engine wedged")

    def complete(self, turn_id: str, prompt: list[int], says: list[int], salt: str = "") -> TurnOutput:
        self.model.says = iter(says)
        self.submit(turn_id, prompt, len(says), salt)
        self.run()
        return self.last[turn_id]


@dataclass(eq=False)
class Block:
    """A cached block of the simulator: its tokens, what follows it, and when it was used last."""

    tokens: tuple[int, ...] = ()
    parent: Block | None = None
    used: int = 0
    children: list[Block] = field(default_factory=list)

    def closest(self, tokens: list[int]) -> tuple[Block | None, int]:
        """The child that begins like ``tokens``; of several, as a sorted list finds it."""
        place = bisect.bisect_left(self.children, tuple(tokens), key=lambda child: child.tokens)
        best, most = None, 0
        for child in self.children[place : place + 1] + self.children[max(0, place - 1) : place]:
            if common(child.tokens, tokens) > most:
                best, most = child, common(child.tokens, tokens)
        return best, most


class Simulator:
    """A pool of ``size`` blocks for one turn at a time: what was used least recently goes first, tails before heads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.root = Block()
        self.cached: set[Block] = set()
        self.path: set[Block] = set()  # of the turn that runs
        self.own = 0  # blocks of the turn that runs, not in the trie
        self.time = itertools.count(1)
        self.sent: list[np.ndarray] = []

    def reusable(self, prompt: list[int]) -> int:
        """The longest beginning of the prompt that was ever computed."""
        return max((common(other, prompt[:-1]) for other in self.sent), default=0)

    def turn(self, prompt: list[int], says: list[int], chunk: int) -> int:
        """How many tokens of the prompt are hit; the cache is then as the turn leaves it."""
        whole, partial, hit = self._match(prompt[:-1])
        now = next(self.time)
        for block in whole:
            block.used = now
        self.path = set(whole)
        wanted = -(-len(prompt) // BLOCK) - len(whole)
        assert wanted < self.size - len(whole), "the turn does not fit"
        self._reserve(wanted, partial)
        end = whole[-1] if whole else self.root
        total, computed = prompt + says, hit
        while computed < len(total) - 1:
            upto = min(len(prompt), computed + chunk) if computed < len(prompt) else computed + 1
            self._reserve(-(-max(upto, len(prompt)) // BLOCK) - len(self.path) - self.own)
            computed = upto
            while (len(self.path) + 1) * BLOCK <= computed:
                end = self._commit(end, total[len(self.path) * BLOCK : (len(self.path) + 1) * BLOCK])
        self._leave(end, total[len(self.path) * BLOCK : computed])
        self.sent.append(np.array(total[:computed]))
        return hit

    def _match(self, wanted: list[int]) -> tuple[list[Block], Block | None, int]:
        at, path, hit = self.root, [], 0
        while hit < len(wanted):
            best, shared = at.closest(wanted[hit : hit + BLOCK])
            hit += shared
            if best is None or shared < BLOCK:
                return path, best, hit
            path.append(best)
            at = best
        return path, None, hit

    def _reserve(self, count: int, protected: Block | None = None) -> None:
        """Take ``count`` blocks. The protected one is given up like others, but is free only afterwards."""
        kept = 0
        while self.size - len(self.cached) - self.own - kept < count:
            leaves = [block for block in self.cached if not block.children and block not in self.path]
            victim = min(leaves, key=lambda block: block.used)
            self._drop(victim)
            kept += victim is protected
        self.own += max(0, count)

    def _drop(self, block: Block) -> None:
        self.cached.discard(block)
        assert block.parent is not None
        block.parent.children.remove(block)

    def _commit(self, end: Block, tokens: list[int]) -> Block:
        known, shared = end.closest(tokens)
        if known is not None and shared == BLOCK:
            block, known.used = known, next(self.time)  # cached already: the turn goes on with that one
            self.own -= 1
        else:
            if known is not None and shared == len(known.tokens):
                self._drop(known)  # the new block says all that its half-full one said
            block = self._add(end, tokens)
        self.path.add(block)
        return block

    def _add(self, end: Block, tokens: list[int]) -> Block:
        block = Block(tuple(tokens), end, next(self.time))
        bisect.insort(end.children, block, key=lambda child: child.tokens)
        self.cached.add(block)
        self.own -= 1
        return block

    def _leave(self, end: Block, rest: list[int]) -> None:
        known, shared = end.closest(rest)
        if rest and shared == len(rest) and known is not None:
            known.used = next(self.time) if not known.children else known.used
        elif rest:
            if known is not None and len(known.tokens) < BLOCK and shared == len(known.tokens):
                self._drop(known)
            self._add(end, rest)
        self.own, self.path = 0, set()


def common(left, right) -> int:
    length = min(len(left), len(right))
    differs = np.asarray(left[:length]) != np.asarray(right[:length])
    return int(differs.argmax()) if differs.any() else length


def tokens_of(text: str) -> list[int]:
    """Four characters a token."""
    return [zlib.crc32(text[i : i + 4].encode()) % VOCAB for i in range(0, len(text), 4)]


def recorded_turns() -> list[tuple[list[int], list[int]]]:
    """Prompts and the beginnings of their answers, of recorded agents; their turns alternate.

    All 21 agents are half a minute of work: so they are where ``SESSILE_ALL_TRACES`` is set, and else eight of them.
    """
    names = ("",) if ALL_TRACES else EIGHT_AGENTS
    agents, traces = [], recordings("traces")
    for file in [file for name in names for file in sorted(traces.glob(f"m*/{name}*.jsonl"))]:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        agents.append([(tokens_of(row["input"]), tokens_of(row["output"])[:12] or [1]) for row in rows if row["input"]])
    return [turn for turns in itertools.zip_longest(*agents) for turn in turns if turn is not None]


def test_a_replay_counts_as_an_independent_recount_does() -> None:
    """LMCache #1260 (hit rate always 1): sources sum to the prompt, and each is what a plain recount says."""
    turns = recorded_turns()
    blocks = {tuple(prompt[:end]) for prompt, _ in turns for end in range(BLOCK, len(prompt), BLOCK)}
    size = len(blocks) // 10
    engine, simulator = Engine(size), Simulator(size)
    computed_before = 0
    gap = 0
    for number, (prompt, says) in enumerate(turns):
        reusable = simulator.reusable(prompt)
        hit = simulator.turn(prompt, says, chunk=512)
        usage = engine.complete(str(number), prompt, says).usage
        computed = sum(engine.model.computed) - computed_before - (len(says) - 1)
        computed_before = sum(engine.model.computed)
        assert usage.tokens_by_source == TokensBySource(device=hit, computed=computed)
        assert usage.tokens_by_source.total == len(prompt)
        assert usage.reusable_tokens == reusable
        assert usage.missed == MissedTokens(evicted=reusable - hit)
        gap += reusable - hit
    stats = engine.core.stats()
    assert stats.reuse.missed == MissedTokens(evicted=gap)
    assert stats.prompt_tokens_by_source.total == sum(len(prompt) for prompt, _ in turns)
    assert stats.prompt_tokens_by_source.cached + gap == stats.reuse.reusable_tokens
    assert gap > 0.05 * stats.reuse.reusable_tokens, "the pool was not too small to matter"
    assert stats.reuse.index_forgotten == 0
    assert len(engine.admitted) == len(turns)


LETTERS = st.lists(st.integers(0, 2), min_size=1, max_size=70)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("stxa"), LETTERS, st.integers(1, 40)), min_size=1, max_size=14))
def test_turns_side_by_side_count_once_whatever_happens_to_them(steps: list[tuple[str, list[int], int]]) -> None:
    """vLLM #25780, #43736: preempted and retried turns counted as hits."""
    engine = Engine(14, ChecksumModel(), max_batch_tokens=32, max_prefill_tokens_while_decoding=16, max_sequences=4)
    prompts: dict[str, list[int]] = {}
    for number, (kind, letters, max_tokens) in enumerate(steps):
        if kind == "a" and prompts:
            engine.core.abort(list(prompts)[letters[0] % len(prompts)])
            continue
        if kind == "s":
            engine.step()
            continue
        prompts[str(number)] = letters
        engine.submit(str(number), letters, max_tokens, salt=kind)
    engine.run()
    counted = {turn.turn_id: turn for turn in engine.admitted}
    assert len(counted) == len(engine.admitted), "a turn was counted twice"
    for turn_id, turn in counted.items():
        assert turn.tokens_by_source.total == len(prompts[turn_id])
        assert turn.tokens_by_source.cached + turn.missed.total == turn.reusable_tokens < len(prompts[turn_id])
        usage = engine.last[turn_id].usage
        assert (usage.tokens_by_source, usage.reusable_tokens) == (turn.tokens_by_source, turn.reusable_tokens)
    stats = engine.core.stats()
    assert stats.prompt_tokens_by_source.total == sum(turn.tokens_by_source.total for turn in counted.values())
    assert stats.reuse.reusable_tokens == sum(turn.reusable_tokens for turn in counted.values())


def test_another_salts_tokens_are_not_reusable_but_counted() -> None:
    engine = Engine(64, ChecksumModel())
    prompt = list(range(50))
    engine.submit("a", prompt, 2, salt="one")
    engine.run()
    engine.submit("b", prompt, 2, salt="two")
    engine.run()
    assert engine.last["b"].usage.reusable_tokens == 0
    assert engine.core.stats().reuse.other_salts == 48


def test_what_only_the_log_knows_was_computed_by_another_engine() -> None:
    engine = Engine(64, ChecksumModel())
    engine.submit("a", list(range(50)), 2, logged=40)
    engine.run()
    usage = engine.last["a"].usage
    assert (usage.reusable_tokens, usage.missed) == (40, MissedTokens(other_engine=40))


def test_what_was_kept_for_a_time_that_is_over_has_expired() -> None:
    engine = Engine(24, ChecksumModel())
    prompt = [i % VOCAB for i in range(100)]
    engine.submit("a", prompt, 2, owner="session")
    engine.run()
    kept = RetainPath(token_ids=prompt, owner="session", retention=Retention(ttl_s=3.0))
    engine.core.call(CacheCall(1, kept))
    for other in range(3):
        engine.submit(f"other {other}", [(other + i * i) % VOCAB for i in range(300)], 2)
        engine.run()
    engine.submit("b", prompt, 2, owner="session")
    engine.run()
    missed = engine.last["b"].usage.missed
    assert missed.expired > 0
    assert missed == MissedTokens(expired=missed.expired)
    assert missed.total == engine.last["b"].usage.reusable_tokens - engine.last["b"].usage.tokens_by_source.cached
