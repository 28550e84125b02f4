"""Plans steps: which tokens of which turns.

There are no phases: a step is one budget of tokens. Running decodes come first, one token each, then drafts for them;
then chunks of prompts, the most urgent first, whether they run already or wait to start. Drafts take only what is left
over: they preempt nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ....sessions.cache.prefix_cache import PrefixCache
from ....sessions.cache.radix_node import Match
from ..block_loads import BlockLoad, LoadDecision
from ..engine_config import EngineConfig
from ..kv_transfer import KVTransfer
from ..messages import FinishReason, Priority, QueueStats
from ..prompt_accounts import PromptAccounts
from ..sequence import Sequence, SequenceState
from ..speculation.drafter import Drafter
from .draft_planner import DraftPlanner
from .look_ahead import decodes_alone, next_decodes
from .plan import Chunk, StepPlan
from .stall_bound import StallBound
from .step_budget import StepBudget
from .step_time import StepTimeModel
from .turn_states import TurnStates


class Scheduler:
    """Alone says what a step computes. ``transfer`` None: there are no tiers below the device's."""

    def __init__(
        self,
        config: EngineConfig,
        cache: PrefixCache,
        accounts: PromptAccounts,
        clock: Callable[[], float],
        transfer: KVTransfer | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self._max_batch_tokens = config.max_batch_tokens
        self._drafts = DraftPlanner(cache, drafter, config.max_batch_tokens)
        self._clock = clock
        self._times = StepTimeModel()
        self._turns = TurnStates(config, cache, accounts, clock, transfer, self._times)
        self._bound = StallBound(
            self._times,
            config.max_stall_ms / 1000 if config.max_stall_ms else math.inf,
            config.max_prefill_tokens_while_decoding or config.max_batch_tokens,
        )

    @property
    def running(self) -> tuple[Sequence, ...]:
        return self._turns.running

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        return tuple(self._turns.waiting)

    @property
    def num_waiting(self) -> int:
        return len(self._turns.waiting)

    @property
    def loading(self) -> tuple[Sequence, ...]:
        return self._turns.loading

    @property
    def num_preemptions(self) -> int:
        """Since the start."""
        return self._turns.num_preemptions

    @property
    def prefill_tokens_per_s(self) -> float:
        """Recent speed, while there are prompts to compute."""
        return self._turns.counts.prefill_tokens_per_s

    @property
    def turn_s(self) -> float:
        """Recent mean of the seconds from a turn's start to its end."""
        return self._turns.counts.turn_s

    def queues(self) -> tuple[QueueStats, ...]:
        """What waits and waited, by class."""
        return self._turns.counts.by_class(self._turns.waiting)

    def served_tokens(self, tenant: str, priority: Priority) -> float:
        """What counts against ``tenant`` in a class; only differences between tenants mean anything."""
        return self._turns.shares[priority].served(tenant)

    def spread(self, priority: Priority) -> float:
        """By how much, in a class, the tenant served most is ahead of the one served least, among those that wait."""
        return self._turns.shares[priority].spread

    def due(self, sequence: Sequence) -> float:
        """From when on no turn of the same tenant and class that comes later starts before ``sequence``, which
        waits."""
        return self._turns.waiting.urgency(sequence).due

    def add(self, sequence: Sequence) -> None:
        """Let a turn wait for its first step."""
        self._turns.add(sequence)

    def schedule(self) -> StepPlan:
        """Plan the next step, admitting and preempting turns as needed. An empty plan: nothing can be done."""
        now = self._clock()
        plan = StepPlan()
        self._turns.begin_step(plan, now)
        budget = StepBudget(self._max_batch_tokens, self._bound)
        prefilling = self._plan_decodes(plan)
        self._drafts.add_to(plan)
        budget.add_decodes(plan.chunks)
        self._plan_prefills(prefilling, plan, budget, now)
        plan.work = budget.work
        plan.predicted_s = self._times.predict(budget.work)
        return plan

    def schedule_ahead(self, present: StepPlan) -> StepPlan | None:
        """Plan the step after ``present`` before the tokens of that are known (see ``look_ahead``). None: it depends on
        them, or something else than to decode may have to be done."""
        now = self._clock()
        if not decodes_alone(present, self._turns.running) or not self._turns.let_time_pass(now):
            return None
        chunks = next_decodes(present)
        if not chunks or not all(self._turns.grow(chunk.sequence, chunk.start + 1) for chunk in chunks):
            return None
        if not self._drafts.skips():
            return None
        budget = StepBudget(self._max_batch_tokens, self._bound)
        budget.add_decodes(chunks)
        predicted_s = self._times.predict(budget.work)
        return StepPlan(chunks=chunks, expired=self._turns.expire(now), work=budget.work, predicted_s=predicted_s)

    def complete(self, plan: StepPlan) -> dict[Sequence, list[int]]:
        """Note that ``plan`` was computed and give full blocks to the tree. Drafts are not taken for computed yet: what
        follows is ``accept`` for each sequence that got tokens.

        Returns the sequences that go on with other blocks, since the tree had the same tokens already, and the indices
        of these blocks.
        """
        replaced: dict[Sequence, list[int]] = {}
        for chunk in plan.chunks:
            if chunk.sequence.finish_reason is not None:  # by the token that this step, planned ahead, goes on from
                continue
            changed = self._turns.computed(chunk.sequence, chunk.start + chunk.num_own_tokens)
            if changed:
                replaced[chunk.sequence] = changed
        return replaced

    def accept(self, chunks: list[Chunk], accepted: Chunk) -> bool:
        """Note that a turn got tokens in a step, of which all but the last were computed as drafts of ``accepted``, one
        of the turn's ``chunks``. Returns whether it has other blocks now."""
        self._turns.charge(accepted.sequence, accepted.sequence.num_tokens)
        return self._drafts.accept(chunks, accepted)

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """The step of ``plan`` took ``seconds``: what is predicted next learns from it."""
        self._bound.observe(plan.work, plan.predicted_s, seconds)
        self._times.observe(plan.work, seconds)
        self._turns.counts.note_prefill(plan.work.prefill_tokens, seconds)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a turn, running or waiting; what it computed stays cached. One that loads gives its blocks back when the
        I/O thread, which still writes to them, is done."""
        self._turns.finish(sequence, reason)

    def check_integrity(self) -> None:
        """Raise AssertionError unless all turns are where they say. For tests: visits everything."""
        self._turns.check_integrity()

    def plan_load(self, sequence: Sequence) -> tuple[Match, LoadDecision]:
        """What a sequence that does not wait yet would find on the device, and load."""
        return self._turns.plan_load(sequence)

    def load_ahead(self, sequence: Sequence) -> BlockLoad | None:
        """Let a sequence load what the lower tiers have of it, and then end: it takes no part in steps. None: there is
        nothing to load, or no room that others do not need: those that run, to go on, and those that wait, to start."""
        return self._turns.load_ahead(sequence)

    def note_room(self) -> None:
        """Blocks became available otherwise than by a turn's end: one that did not fit may fit now."""
        self._turns.note_room()

    def _plan_decodes(self, plan: StepPlan) -> list[Sequence]:
        """Returns the turns that run and do not decode; some may be preempted by now."""
        running = self._turns.running
        spare = self._max_batch_tokens - len(running)  # for what grammars forced
        prefilling = []
        for sequence in running:
            if sequence.state is not SequenceState.RUNNING:
                continue
            if not sequence.is_decoding:
                prefilling.append(sequence)
            elif self._turns.make_room(sequence, plan):
                forced = min(sequence.num_uncomputed - 1, spare)
                spare -= forced
                plan.chunks.append(Chunk(sequence, sequence.num_computed, 1 + forced))
        return prefilling

    def _plan_prefills(self, running: list[Sequence], plan: StepPlan, budget: StepBudget, now: float) -> None:
        """Fill what is left of the step with chunks of ``running`` turns and of others that start where it is their
        turn, the most urgent first."""
        prefills = [(self._turns.urgency(each, now), each) for each in running if each.state is SequenceState.RUNNING]
        prefills.sort(key=lambda pair: pair[0], reverse=True)
        waits: Sequence | None = None
        while budget.has_room:
            waits = waits or self._turns.next_to_start()
            if waits is not None and (not prefills or self._turns.waiting.urgency(waits) < prefills[-1][0]):
                sequence, waits = waits, None
                self._turns.start(sequence, plan, now)
            elif prefills:
                sequence = prefills.pop()[1]
            else:
                return
            if sequence.state is SequenceState.RUNNING:
                self._plan_chunk(sequence, plan, budget)

    def _plan_chunk(self, sequence: Sequence, plan: StepPlan, budget: StepBudget) -> None:
        num_tokens = budget.take_prefill(sequence)
        if num_tokens:
            plan.chunks.append(Chunk(sequence, sequence.num_computed, num_tokens))
