"""Which tokens of which turns the next step computes.

There are no phases: a step is one budget of tokens. Running decodes come first, one token each; then prompts that are
being computed, in chunks; then turns that wait are admitted. A turn that waits holds no blocks, so those that run can
always go on: when the pool has none left, the turn that is last in order gives its blocks to the tree and waits again.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable

from ...sessions.cache.prefix_cache import BlockCopy, PrefixCache
from ...sessions.cache.radix_tree import Match
from ...sessions.cache.token_key import common_prefix_tokens
from .engine_config import EngineConfig
from .messages import FinishReason, TokensBySource
from .sequence import Sequence, SequenceState


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Compute ``num_tokens`` tokens of ``sequence`` from ``start`` on."""

    sequence: Sequence
    start: int
    num_tokens: int

    @property
    def reaches_end(self) -> bool:
        """The last token is computed too, so the next one can be sampled."""
        return self.start + self.num_tokens == self.sequence.num_tokens


@dataclasses.dataclass(slots=True)
class StepPlan:
    """One step: do ``copies`` first, then compute ``chunks``. The turns in ``preempted`` gave their blocks back."""

    chunks: list[Chunk] = dataclasses.field(default_factory=list)
    copies: list[BlockCopy] = dataclasses.field(default_factory=list)
    preempted: list[Sequence] = dataclasses.field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.turn.priority, sequence.order


class Scheduler:
    """Alone owns which turns wait and which run."""

    def __init__(self, config: EngineConfig, cache: PrefixCache, clock: Callable[[], float]) -> None:
        self._config = config
        self._cache = cache
        self._clock = clock
        self._waiting: list[Sequence] = []  # by rank
        self._running: list[Sequence] = []  # by rank
        self._pool_is_full = False  # the first in line did not fit; nothing was given back since
        self._shared_with: dict[tuple[int, int], int] = {}  # (waiting, running) -> tokens that their prompts share
        self.num_preemptions = 0
        self.admitted_tokens = TokensBySource()  # of all turns since the start

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        return tuple(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Let a turn wait for its first step."""
        prompt = sequence.packed(0, sequence.num_prompt_tokens - 1)
        sequence.cached_on_arrival = self._cache.match(sequence.turn.cache_salt, prompt).num_tokens
        bisect.insort(self._waiting, sequence, key=_rank)

    def schedule(self) -> StepPlan:
        """Plan the next step, admitting and preempting turns as needed. An empty plan: nothing can be done."""
        plan = StepPlan()
        self._plan_decodes(plan)
        budget = self._config.max_batch_tokens - plan.num_tokens
        if plan.chunks:
            budget = min(budget, self._config.max_prefill_tokens_while_decoding)
        budget = self._plan_prefills(plan, budget)
        self._admit(plan, budget)
        return plan

    def complete(self, plan: StepPlan) -> dict[Sequence, list[int]]:
        """Note that ``plan`` was computed and give full blocks to the tree.

        Returns the sequences that go on with other blocks, since the tree had the same tokens already, and the indices
        of these blocks.
        """
        replaced: dict[Sequence, list[int]] = {}
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.num_computed = chunk.start + chunk.num_tokens
            held = sequence.held
            assert held is not None
            if sequence.num_computed - held.num_cached_tokens >= self._cache.block_size:
                key = sequence.packed(held.num_cached_tokens, sequence.num_computed)
                changed = self._cache.commit(held, key, sequence.num_computed)
                if changed:
                    replaced[sequence] = changed
        return replaced

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a turn, running or waiting; what it computed stays cached."""
        if sequence.state is SequenceState.RUNNING:
            self._release(sequence)
            self._running.remove(sequence)
        elif sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        self._forget_shared(sequence)
        sequence.state = SequenceState.FINISHED
        sequence.finish_reason = reason

    # -- planning -------------------------------------------------------------------------------------------------

    def _plan_decodes(self, plan: StepPlan) -> None:
        for sequence in self.running:
            if sequence.state is SequenceState.RUNNING and sequence.is_decoding and self._make_room(sequence, plan):
                plan.chunks.append(Chunk(sequence, sequence.num_computed, 1))

    def _make_room(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Reserve the blocks of all tokens of ``sequence``; False if it was preempted itself."""
        held = sequence.held
        assert held is not None
        while not self._cache.grow(held, sequence.num_tokens):
            victim = self._running[-1]
            self._preempt(victim)
            plan.preempted.append(victim)
            if victim is sequence:
                return False
        return True

    def _plan_prefills(self, plan: StepPlan, budget: int) -> int:
        for sequence in self._running:
            if budget > 0 and not sequence.is_decoding:
                budget -= self._plan_chunk(plan, sequence, budget)
        return budget

    def _plan_chunk(self, plan: StepPlan, sequence: Sequence, budget: int) -> int:
        num_tokens = min(budget, sequence.num_uncomputed)
        plan.chunks.append(Chunk(sequence, sequence.num_computed, num_tokens))
        return num_tokens

    # -- admission ------------------------------------------------------------------------------------------------

    def _admit(self, plan: StepPlan, budget: int) -> None:
        if self._pool_is_full:
            return
        for sequence in self.waiting:
            if budget <= 0 or len(self._running) >= self._config.max_sequences:
                return
            if self._is_being_computed(sequence):
                continue
            if not self._start(sequence, plan):
                self._pool_is_full = True
                return
            budget -= self._plan_chunk(plan, sequence, budget)

    def _is_being_computed(self, sequence: Sequence) -> bool:
        """A running turn is computing blocks right now that ``sequence`` needs too: better wait for them."""
        block_size = self._cache.block_size
        for leader in self._running:
            if leader.is_decoding or leader.turn.cache_salt != sequence.turn.cache_salt:
                continue
            pair = (sequence.order, leader.order)
            if pair not in self._shared_with:
                self._shared_with[pair] = common_prefix_tokens(
                    sequence.packed(0, sequence.num_tokens - 1), leader.packed(0, leader.num_tokens)
                )
            if self._shared_with[pair] // block_size > leader.num_computed // block_size:
                return True
        return False

    def _start(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Move a turn from waiting to running, with what the cache has of it; False if the pool has no room."""
        key = sequence.packed(0, sequence.num_tokens - 1)  # the last token is computed always: its logits are needed
        match = self._cache.match(sequence.turn.cache_salt, key)
        admitted = self._cache.admit(match, sequence.num_tokens, spare_blocks=len(self._running))
        if admitted is None:
            return False
        sequence.held, copy = admitted
        if copy is not None:
            plan.copies.append(copy)
        sequence.num_computed = match.num_tokens
        sequence.state = SequenceState.RUNNING
        self._waiting.remove(sequence)
        bisect.insort(self._running, sequence, key=_rank)
        if sequence.tokens_by_source is None:
            self._count_sources(sequence, match)
        return True

    def _count_sources(self, sequence: Sequence, match: Match) -> None:
        """Once in a turn's life, at its first admission."""
        device = min(match.num_tokens, sequence.cached_on_arrival)
        sequence.admitted = self._clock()
        sequence.tokens_by_source = TokensBySource(
            device=device,
            in_flight=match.num_tokens - device,
            computed=sequence.num_prompt_tokens - match.num_tokens,
        )
        self.admitted_tokens = self.admitted_tokens.plus(sequence.tokens_by_source)

    # -- giving back ----------------------------------------------------------------------------------------------

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        self._running.remove(sequence)
        sequence.state = SequenceState.WAITING
        sequence.num_computed = 0
        sequence.preemptions += 1
        self.num_preemptions += 1
        bisect.insort(self._waiting, sequence, key=_rank)

    def _release(self, sequence: Sequence) -> None:
        held = sequence.held
        assert held is not None
        key = sequence.packed(held.num_cached_tokens, sequence.num_computed)
        self._cache.release(held, key, sequence.num_computed)
        sequence.held = None
        self._pool_is_full = False

    def _forget_shared(self, sequence: Sequence) -> None:
        gone = [pair for pair in self._shared_with if sequence.order in pair]
        for pair in gone:
            del self._shared_with[pair]
