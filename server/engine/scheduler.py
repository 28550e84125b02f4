"""Which tokens of which turns the next step computes.

There are no phases: a step is one budget of tokens. Running decodes come first, one token each, then drafts for them;
then prompts that are being computed, in chunks; then turns that wait are admitted. A turn that waits holds no blocks,
so those that run can always go on: when the pool has none left, the turn that is last in order gives its blocks to the
tree and waits again. Drafts take only what is left over: they preempt nobody.

A turn whose prefix is in a lower tier is admitted and *loads*: it has its blocks, but takes no part in steps until the
I/O thread has filled them, or has given up; then it computes the rest.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable

from ...sessions.cache.cost_model import Source
from ...sessions.cache.prefix_cache import BlockCopy, PrefixCache
from ...sessions.cache.radix_tree import Match
from ...sessions.cache.tiers import Tier
from ...sessions.cache.token_key import common_prefix_tokens
from .engine_config import EngineConfig
from .kv_transfer import BlockLoad, FinishedLoad, KVTransfer
from .messages import FinishReason, TokensBySource
from .sequence import Sequence, SequenceState
from .speculation.drafter import Drafter, DraftRequest, NoDrafts


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Compute ``num_tokens`` tokens of ``sequence`` from ``start`` on, of which the last are ``drafts``: guesses that
    stand behind the sequence's own tokens."""

    sequence: Sequence
    start: int
    num_tokens: int
    drafts: tuple[int, ...] = ()

    @property
    def num_own_tokens(self) -> int:
        return self.num_tokens - len(self.drafts)

    @property
    def reaches_end(self) -> bool:
        """The sequence's last token is computed too, so the next one can be sampled."""
        return self.start + self.num_own_tokens == self.sequence.num_tokens

    @property
    def num_rows(self) -> int:
        """Rows of logits that it yields."""
        return 1 + len(self.drafts) if self.reaches_end else 0


@dataclasses.dataclass(slots=True)
class StepPlan:
    """One step: do ``copies`` first, then start ``loads`` and compute ``chunks``. The turns in ``preempted`` gave their
    blocks back.

    Copies come before all else that writes to the pool: the source of one may already belong to somebody else.
    """

    chunks: list[Chunk] = dataclasses.field(default_factory=list)
    copies: list[BlockCopy] = dataclasses.field(default_factory=list)
    loads: list[BlockLoad] = dataclasses.field(default_factory=list)
    preempted: list[Sequence] = dataclasses.field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def only_decodes(self) -> bool:
        """Each chunk is a token that was sampled last, and drafts behind it."""
        return all(chunk.num_own_tokens == 1 and chunk.reaches_end for chunk in self.chunks)


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.turn.priority, sequence.order


class Scheduler:
    """Alone owns which turns wait, load and run. ``transfer`` None: there are no tiers below the device's."""

    def __init__(
        self,
        config: EngineConfig,
        cache: PrefixCache,
        clock: Callable[[], float],
        transfer: KVTransfer | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self._config = config
        self._drafter = drafter if drafter is not None else NoDrafts()
        self._cache = cache
        self._transfer = transfer
        self._clock = clock
        self._waiting: list[Sequence] = []  # by rank
        self._running: list[Sequence] = []  # by rank
        self._loading: list[Sequence] = []  # those among them that were ended meanwhile only wait for the I/O thread
        self._did_not_fit: Sequence | None = None  # when it was tried last; nothing was given back since
        self._shared_with: dict[int, dict[int, int]] = {}  # orders of a running and a waiting turn -> tokens in common
        self.num_preemptions = 0
        self.admitted_tokens = TokensBySource()  # of all turns since the start

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        return tuple(self._waiting)

    @property
    def loading(self) -> tuple[Sequence, ...]:
        return tuple(self._loading)

    def add(self, sequence: Sequence) -> None:
        """Let a turn wait for its first step."""
        prompt = sequence.packed(0, sequence.num_prompt_tokens - 1)
        sequence.cached_on_arrival = self._cache.match(sequence.turn.cache_salt, prompt).num_tokens
        bisect.insort(self._waiting, sequence, key=_rank)

    def schedule(self) -> StepPlan:
        """Plan the next step, admitting and preempting turns as needed. An empty plan: nothing can be done."""
        self._take_finished_loads()
        plan = StepPlan()
        self._plan_decodes(plan)
        self._add_drafts(plan)
        budget = self._config.max_batch_tokens - plan.num_tokens
        if plan.chunks:
            budget = min(budget, self._config.max_prefill_tokens_while_decoding)
        budget = self._plan_prefills(plan, budget)
        self._admit(plan, budget)
        return plan

    def complete(self, plan: StepPlan) -> dict[Sequence, list[int]]:
        """Note that ``plan`` was computed and give full blocks to the tree. Drafts are not taken for computed yet: what
        follows is ``accept`` for each sequence that got tokens.

        Returns the sequences that go on with other blocks, since the tree had the same tokens already, and the indices
        of these blocks.
        """
        replaced: dict[Sequence, list[int]] = {}
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.num_computed = chunk.start + chunk.num_own_tokens
            held = sequence.held
            assert held is not None
            if sequence.num_computed - held.num_cached_tokens >= self._cache.block_size:
                key = sequence.packed(held.num_cached_tokens, sequence.num_computed)
                changed = self._cache.commit(held, key, sequence.num_computed)
                if changed:
                    replaced[sequence] = changed
        return replaced

    def accept(self, sequence: Sequence) -> bool:
        """Note that the tokens which ``sequence`` got in a step, all but the last one, were computed in it as drafts.

        Rejected drafts leave nothing: their KV is behind what is computed, and blocks reserved for them are given back.
        Returns whether there were such blocks.
        """
        held = sequence.held
        assert held is not None
        sequence.num_computed = sequence.num_tokens - 1
        return self._cache.shrink(held, sequence.num_tokens)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a turn, running or waiting; what it computed stays cached."""
        if sequence.state is SequenceState.RUNNING:
            self._release(sequence)
            self._running.remove(sequence)
        elif sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        elif sequence.state is SequenceState.LOADING:
            self._note_load_s(sequence)
        self._forget_shared(sequence)
        if sequence.state is not SequenceState.LOADING:  # the I/O thread still writes to its blocks
            sequence.state = SequenceState.FINISHED
        sequence.finish_reason = reason

    # -- planning -------------------------------------------------------------------------------------------------

    def _plan_decodes(self, plan: StepPlan) -> None:
        for sequence in self.running:
            if sequence.state is SequenceState.RUNNING and sequence.is_decoding and self._make_room(sequence, plan):
                plan.chunks.append(Chunk(sequence, sequence.num_computed, 1))

    def _add_drafts(self, plan: StepPlan) -> None:
        """Put drafts behind the decodes of ``plan``, as far as tokens and blocks are left over for them."""
        budget = self._config.max_batch_tokens - plan.num_tokens
        requests = [DraftRequest(chunk.sequence, max(0, chunk.sequence.num_tokens_left - 1)) for chunk in plan.chunks]
        if not requests:
            return
        for index, drafts in enumerate(self._drafter.draft(requests, budget)):
            chunk = plan.chunks[index]
            drafts = self._fit(chunk.sequence, drafts[: min(max(0, budget), requests[index].most)])
            if drafts:
                plan.chunks[index] = dataclasses.replace(chunk, num_tokens=1 + len(drafts), drafts=drafts)
                budget -= len(drafts)

    def _fit(self, sequence: Sequence, drafts: tuple[int, ...]) -> tuple[int, ...]:
        """Reserve the blocks of ``drafts`` too; where the pool cannot give them, only those that fit are returned."""
        held = sequence.held
        assert held is not None
        if self._cache.grow(held, sequence.num_tokens + len(drafts)):
            return drafts
        return drafts[: len(held.block_ids) * self._cache.block_size - sequence.num_tokens]

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
        leaders = [sequence for sequence in (*self._running, *self._loading) if not sequence.is_decoding]
        index = 0
        while index < len(self._waiting) and budget > 0 and self._has_a_place:
            sequence = self._waiting[index]
            if sequence is self._did_not_fit:
                return
            if self._is_being_computed(sequence, leaders):
                index += 1
            elif not self._start(sequence, plan):
                self._did_not_fit = sequence
                return
            else:
                leaders.append(sequence)
                if sequence.state is SequenceState.RUNNING:
                    budget -= self._plan_chunk(plan, sequence, budget)

    @property
    def _has_a_place(self) -> bool:
        return len(self._running) + len(self._loading) < self._config.max_sequences

    def _is_being_computed(self, sequence: Sequence, leaders: list[Sequence]) -> bool:
        """One of ``leaders`` computes or loads blocks right now that ``sequence`` needs too: better wait for them."""
        block_size = self._cache.block_size
        return any(
            leader.turn.cache_salt == sequence.turn.cache_salt
            and self._shared_tokens(sequence, leader) // block_size > leader.num_computed // block_size
            for leader in leaders
        )

    def _shared_tokens(self, sequence: Sequence, leader: Sequence) -> int:
        shared = self._shared_with.setdefault(leader.order, {})
        if sequence.order not in shared:
            shared[sequence.order] = common_prefix_tokens(
                sequence.packed(0, sequence.num_tokens - 1), leader.packed(0, leader.num_tokens)
            )
        return shared[sequence.order]

    def _start(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Move a turn from waiting to running, or to loading, with what the cache has of it; False if the pool has no
        room."""
        key = sequence.packed(0, sequence.num_tokens - 1)  # the last token is computed always: its logits are needed
        match = self._cache.match(sequence.turn.cache_salt, key)
        wanted = [] if self._transfer is None else self._cache.content_keys_after(match, key)
        sources = self._plan_load(match, wanted, sequence.num_tokens)
        if sources:
            match = match.whole_blocks()  # the rest of its block is loaded with the others
        spare_blocks = len(self._running) + len(self._loading)
        admitted = self._cache.admit(match, sequence.num_tokens, spare_blocks)
        if admitted is None:
            return False
        sequence.held, copy = admitted
        if copy is not None:
            plan.copies.append(copy)
        sequence.num_computed = sequence.held.num_matched_tokens
        self._waiting.remove(sequence)
        self._forget_shared(sequence)
        if sequence.admitted is None:
            sequence.admitted = self._clock()
        if sources and self._transfer is not None:
            sequence.state = SequenceState.LOADING
            sequence.load_started = self._clock()
            self._loading.append(sequence)
            plan.loads.append(self._transfer.load_of(sequence, sources, wanted, len(match.blocks)))
        else:
            self._run(sequence, sequence.num_computed, {})
        return True

    def _plan_load(self, match: Match, wanted: list[bytes], num_tokens: int) -> list[Source]:
        """What to load of ``wanted``, the blocks after the whole ones of ``match``."""
        if self._transfer is None or not wanted:
            return []
        return self._transfer.plan(len(match.blocks), wanted, num_tokens)

    def _run(self, sequence: Sequence, num_matched: int, loaded: dict[Tier, int]) -> None:
        """Let an admitted turn take part in steps."""
        sequence.state = SequenceState.RUNNING
        bisect.insort(self._running, sequence, key=_rank)
        if sequence.tokens_by_source is None:
            self._count_sources(sequence, num_matched, loaded)

    def _count_sources(self, sequence: Sequence, num_matched: int, loaded: dict[Tier, int]) -> None:
        """Once in a turn's life, at its first admission."""
        device = min(num_matched, sequence.cached_on_arrival)
        tokens = {tier: blocks * self._cache.block_size for tier, blocks in loaded.items()}
        sequence.tokens_by_source = TokensBySource(
            device=device,
            in_flight=num_matched - device,
            host=tokens.get(Tier.HOST, 0),
            disk=tokens.get(Tier.DISK, 0),
            shared=tokens.get(Tier.SHARED, 0),
            computed=sequence.num_prompt_tokens - num_matched - sum(tokens.values()),
        )
        self.admitted_tokens = self.admitted_tokens.plus(sequence.tokens_by_source)

    def _take_finished_loads(self) -> None:
        for load in self._transfer.finished() if self._transfer is not None else ():
            self._end_load(load)

    def _end_load(self, load: FinishedLoad) -> None:
        """What was loaded is like what was computed; the turn goes on from there."""
        sequence = load.sequence
        held = sequence.held
        assert held is not None
        self._loading.remove(sequence)
        num_matched = sequence.num_computed
        sequence.num_computed += load.num_blocks * self._cache.block_size
        if sequence.finish_reason is not None:
            sequence.state = SequenceState.FINISHED
            self._release(sequence)
            self._forget_shared(sequence)
            return
        self._note_load_s(sequence)
        key = sequence.packed(held.num_cached_tokens, sequence.num_computed)
        self._cache.commit(held, key, sequence.num_computed)
        self._run(sequence, num_matched, load.loaded)

    def _note_load_s(self, sequence: Sequence) -> None:
        """Loads of the prompt alone: one after a preemption is a part of the seconds of decoding."""
        if sequence.first_token is None:
            sequence.load_s += self._clock() - sequence.load_started

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
        self._cache.commit(held, key, sequence.num_computed)
        if self._transfer is not None and sequence.turn.persist:
            self._transfer.persist(held.content_keys, held.block_ids, held.num_matched_blocks)
        self._cache.release(held, sequence.packed(held.num_cached_tokens, sequence.num_computed), sequence.num_computed)
        sequence.held = None
        self._did_not_fit = None

    def _forget_shared(self, sequence: Sequence) -> None:
        self._shared_with.pop(sequence.order, None)
        for shared in self._shared_with.values():
            shared.pop(sequence.order, None)
