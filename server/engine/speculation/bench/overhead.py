"""Python's time in a step: scheduler and speculation together, with many turns of long contexts and no model."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .....sessions.cache.block_pool import BlockPool
from .....sessions.cache.keys import BlockKeys, KVFingerprint
from .....sessions.cache.path_ends import PathEnds
from .....sessions.cache.prefix_cache import PrefixCache
from .....sessions.cache.radix_tree import RadixTree
from .....sessions.cache.seen_prefixes import SeenPrefixes
from ...engine_config import EngineConfig
from ...messages import SubmitTurn
from ...prompt_accounts import PromptAccounts
from ...sampling_params import SamplingParams
from ...scheduler import Chunk, Scheduler
from ...sequence import Sequence
from ..drafter import Branches, Drafter, DraftRequest, VerifiedDraft

WORDS = 20_000
BLOCK = 16
WARM_UP_STEPS = 100


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Microseconds of Python by step."""

    whole: list[float]  # the scheduler's schedule, complete and accept, the drafter's draft and verified
    drafting: list[float]  # of these, guessing and choosing
    drafted_a_step: float


class _TimedDrafter:
    """A drafter whose ``draft`` is timed."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.seconds = 0.0
        self.num_damaged_files = 0
        self.skips, self.verified, self.stepped = drafter.skips, drafter.verified, drafter.stepped
        self.ended, self.counters, self.close = drafter.ended, drafter.counters, drafter.close

    def draft(self, requests: list[DraftRequest], budget: int) -> list[Branches]:
        started = time.perf_counter()
        branches = self._drafter.draft(requests, budget)
        self.seconds = time.perf_counter() - started
        return branches


def text(rng: np.random.Generator, length: int) -> npt.NDArray[np.int32]:
    """Tokens as frequent as words are, with passages that come again."""
    words = (rng.zipf(1.3, length) % WORDS).astype(np.int32)
    for _ in range(length // 400):
        source, target = rng.integers(0, length - 100, 2).tolist()
        count = int(rng.integers(10, 100))
        words[target : target + count] = words[source : source + count]
    return words


def measure(drafter: Drafter, turns: int, context: int, steps: int) -> StepTimes:
    """Run ``turns`` of ``context`` tokens for ``steps`` steps in which each says what its own text says further on."""
    rng = np.random.default_rng(0)
    timed = _TimedDrafter(drafter)
    scheduler = _scheduler(timed, turns, context + 16 * (steps + WARM_UP_STEPS))
    coming: dict[str, list[int]] = {}
    for number in range(turns):
        words = text(rng, context + 16 * (steps + WARM_UP_STEPS)).tolist()
        coming[str(number)] = words[context:]
        turn = SubmitTurn(turn_id=str(number), token_ids=words[:context], sampling=SamplingParams(temperature=0.0))
        scheduler.add(Sequence(turn, 16 * (steps + WARM_UP_STEPS), 0.0, number))
    whole: list[float] = []
    drafting: list[float] = []
    drafted, left = 0, steps + WARM_UP_STEPS
    while left:
        timed.seconds = 0.0
        started = time.perf_counter()
        plan = scheduler.schedule()
        scheduled = time.perf_counter() - started
        counts = plan.only_decodes and len(plan.chunks) >= turns
        told = [_told(chunk, coming) for chunk in plan.chunks if chunk.reaches_end]
        verified = _append(told)
        started = time.perf_counter()
        scheduler.complete(plan)
        for chunks, accepted, drafts in verified:
            scheduler.accept(chunks, accepted)
            drafter.verified(accepted.sequence, drafts)
        completed = time.perf_counter() - started
        left -= counts
        if counts and left < steps:
            whole.append((scheduled + completed) * 1e6)
            drafting.append(timed.seconds * 1e6)
            drafted += plan.num_tokens - turns
    return StepTimes(whole, drafting, drafted / steps)


def _told(chunk: Chunk, coming: dict[str, list[int]]) -> tuple[Chunk, list[int]]:
    """What the turn says behind ``chunk``: drafts that are right, and one token more."""
    at = chunk.sequence.num_output_tokens
    words = coming[chunk.sequence.turn_id][at : at + 1 + len(chunk.drafts)]
    right = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(chunk.drafts, words, strict=False)))
    return chunk, words[: right + 1]


def _append(told: list[tuple[Chunk, list[int]]]) -> list[tuple[list[Chunk], Chunk, list[VerifiedDraft]]]:
    """Give the turns their tokens. Returns for each its chunks, the one that was right for longest, and what became of
    its drafts."""
    verified = []
    for sequence, group in itertools.groupby(told, lambda pair: pair[0].sequence):
        found = list(group)
        chunk, words = max(found, key=lambda pair: len(pair[1]))
        for word in words:
            sequence.append(word, None)
        sequence.take_output(0.0)
        drafts = [VerifiedDraft(c.drafts, len(w) - 1 if c is chunk else 0) for c, w in found if c.drafts]
        verified.append(([each for each, _ in found], chunk, drafts))
    return verified


def _scheduler(drafter: Drafter, turns: int, most_tokens: int) -> Scheduler:
    blocks = turns * (most_tokens // BLOCK + 2)
    pool = BlockPool(blocks)
    tree = RadixTree(pool, BLOCK)
    ends = PathEnds(tree, time.monotonic, budget_blocks=0)
    cache = PrefixCache(pool, tree, BlockKeys(KVFingerprint("bench", "", "", BLOCK, 1, "")), ends)
    config = EngineConfig(max_batch_tokens=8192, max_sequences=turns, max_stall_ms=0.0)
    return Scheduler(config, cache, PromptAccounts(SeenPrefixes(BLOCK, 1 << 12)), time.monotonic, drafter=drafter)
