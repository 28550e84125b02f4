"""The engine without its process: turns go in, tokens come out, one ``step()`` at a time."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
import secrets
from collections.abc import Callable, Iterable

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from ...sessions.cache.seen_prefixes import SeenPrefixes
from ..model.causal_lm import CausalLM
from .batch import BlockTables, build_arrays
from .cache_messages import CacheAnswer, CacheCall, CacheEvents
from .cache_service import CacheService
from .device.parts import device_parts
from .engine_cache import EngineCache
from .engine_config import EngineConfig
from .grammar_compiler import Vocabulary
from .kv_cache import KVCache
from .lower_tiers import TierSetup
from .messages import STEP_TIMES, AdmittedTurn, EngineStats, FinishReason, SubmitTurn, TurnOutput
from .model_runner import Runner
from .prompt_accounts import PromptAccounts
from .sampler import SampleRow
from .scheduler import Scheduler, StepPlan
from .sequence import Sequence, SequenceState
from .speculation.drafter import Drafter, NoDrafts
from .step_results import StepResults
from .steps import LaunchedStep
from .turn_grammars import TurnGrammars


@dataclasses.dataclass(slots=True)
class _Counters:
    """Since the start. Steps are those that computed something."""

    steps: int = 0
    step_s: float = 0.0
    steps_by_time: list[int] = dataclasses.field(default_factory=lambda: [0] * (len(STEP_TIMES) + 1))
    model_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class _StepUnderWay:
    """A step whose tokens were not read yet. Times are the engine's: when the host began with it, when the model's
    launch began and when that returned."""

    plan: StepPlan
    rows: list[SampleRow]
    launched: LaunchedStep
    started: float
    model_started: float
    returned: float


class EngineCore:
    """Owns scheduler, radix tree, block pool, KV tensors and model. Not thread safe: one loop steps it.

    ``clock`` gives seconds; only differences count. ``weights`` is the fingerprint of the model, and a part of the key
    of each block. ``tiers`` None: there are none below the device tier. ``progress`` hears what takes long at a start
    on a GPU. ``drafter`` makes what guesses tokens that a step then verifies; None: nothing does.
    ``vocabulary`` gives grammars the tokens' bytes; the first turn with a grammar asks for it.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: CausalLM,
        device: torch.device,
        clock: Callable[[], float],
        weights: str = "",
        tiers: TierSetup | None = None,
        progress: Callable[[str, float], None] = lambda stage, fraction: None,
        drafter: Callable[[Runner, KVCache], Drafter] | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        parts = device_parts(config, model, device, progress)
        self.num_blocks = parts.kv_cache.num_blocks
        self.block_size = config.block_size
        self.context_length = min(
            config.max_context or model.max_position, model.max_position, self.num_blocks * config.block_size
        )
        self._clock = clock
        self._kv_cache = parts.kv_cache
        self._runner = parts.runner
        self._steps = parts.steps
        self._cache = EngineCache(config, parts, model, weights, tiers, clock)
        self._drafter = NoDrafts() if drafter is None else drafter(self._runner, self._kv_cache)
        seen = SeenPrefixes(config.block_size, config.reuse_index_tokens // config.block_size)
        self._accounts = PromptAccounts(seen, self._cache.expired_owners)
        self._scheduler = Scheduler(
            config, self._cache.prefixes, self._accounts, clock, self._cache.transfer, self._drafter
        )
        self._service = CacheService(self._cache, self._scheduler, clock)
        self._tables = BlockTables(config.max_sequences, -(-self.context_length // config.block_size) + 1)
        self._grammars = TurnGrammars(vocabulary, model.vocab_size)
        self._turns: dict[str, Sequence] = {}
        self._ended: list[Sequence] = []  # between steps, not yet reported
        self._order = itertools.count()
        self._results = StepResults(self._scheduler, self._tables, self._drafter, self.block_size)
        self._counters = _Counters()
        self._under_way: _StepUnderWay | None = None
        self._aborted: list[Sequence] = []  # that are in it
        self._read_at = -math.inf  # when the last step's tokens were read
        self._last_plans: tuple[StepPlan, ...] = ()  # of the steps that are under way, or else the last one

    @property
    def has_work(self) -> bool:
        """A step would do or report something, now or when a load ends."""
        return bool(self._turns or self._ended or self._scheduler.loading or self._under_way)

    @property
    def turns_in_step(self) -> tuple[str, ...]:
        """The turns of the steps that are under way, or else of the last one."""
        chunks = (chunk for plan in self._last_plans for chunk in plan.chunks)
        return tuple(dict.fromkeys(chunk.sequence.turn_id for chunk in chunks))

    @property
    def only_waits(self) -> bool:
        """Nothing can be done until a load, a grammar or work on a cached path is ready: whoever steps may rest for a
        moment."""
        waits = bool(self._scheduler.loading) or (
            bool(self._service.num_open or self._grammars.num_compiling) and not self._scheduler.num_waiting
        )
        return waits and not self._scheduler.running and not self._ended and self._under_way is None

    def close(self) -> None:
        """Let what the lower tiers took reach the disk. Nothing else may be called afterwards."""
        self._grammars.close()
        self._drafter.close()
        self._service.close()
        self._cache.close()

    def call(self, call: CacheCall) -> None:
        """Do what the front asks of the cache; the answer is among the next ``take_answers``."""
        load = self._service.call(call)
        if load is not None:
            assert self._cache.transfer is not None
            self._cache.transfer.start(load)

    @property
    def has_answers(self) -> bool:
        """``take_answers`` would return some."""
        return self._service.has_answers

    def take_answers(self) -> list[CacheAnswer]:
        """The calls that were answered since the last time."""
        return self._service.take_answers()

    def take_events(self) -> CacheEvents | None:
        """What happened in the cache since the last time; None: nothing."""
        self._tend()
        return self._cache.take_events()

    def submit(self, turn: SubmitTurn) -> None:
        """Let a turn wait for its first step.

        The front has checked it (``context_length``, token ids within the vocabulary). A turn without a seed gets one.
        """
        sampling = turn.sampling
        if sampling.seed is None:
            sampling = msgspec.structs.replace(sampling, seed=secrets.randbits(63))
        room = self.context_length - len(turn.token_ids)
        max_tokens = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
        sequence = Sequence(
            msgspec.structs.replace(turn, sampling=sampling), max_tokens, self._clock(), next(self._order)
        )
        self._turns[turn.turn_id] = sequence
        if sampling.grammar is None:
            self._scheduler.add(sequence)
        else:
            self._grammars.compile(sequence)

    def abort(self, turn_id: str) -> None:
        """End a turn now, or as soon as the step that it is in is done; its last output comes with the next step.
        Unknown ids are ignored: the turn may just have ended by itself."""
        sequence = self._turns.get(turn_id)
        if sequence is None:
            return
        if self._under_way is not None and any(chunk.sequence is sequence for chunk in self._under_way.plan.chunks):
            self._aborted.append(sequence)
        else:
            self._finish(sequence, FinishReason.ABORTED)

    @torch.inference_mode()
    def step(self) -> list[TurnOutput]:
        """Go one step on and return the new tokens of each turn that got any, and the turns that ended.

        Where a step goes on alone (on a GPU), one is under way between two calls. The tokens are then those of the
        step that the call before launched; the next one is launched first, if it need not know them.
        """
        started = self._clock()
        self._tend()
        self._take_compiled()
        present, self._under_way = self._under_way, None
        following = None if present is None or self._aborted else self._launch_ahead(present, started)
        advanced = [] if present is None else self._read(present)
        self._end_aborted()
        if following is not None:
            self._complete(following.plan)  # what it computes is known only now
        else:
            following = self._launch_next(started)
            if following is not None and not self._steps.goes_on_alone:
                advanced, following = self._read(following), None
        self._under_way = following
        return self._report(advanced, self._clock())

    def take_admitted(self) -> list[AdmittedTurn]:
        """The turns whose prompts were counted since the last call."""
        return self._accounts.take_admitted()

    def stats(self) -> EngineStats:
        """Counters since the start, and gauges of this moment."""
        counters, tokens = self._counters, self._results.counters
        return EngineStats(
            steps=counters.steps,
            running=len(self._scheduler.running),
            waiting=self._scheduler.num_waiting,
            queues=self._scheduler.queues(),
            prefill_tokens_per_s=self._scheduler.prefill_tokens_per_s,
            turn_s=self._scheduler.turn_s,
            total_blocks=self.num_blocks,
            free_blocks=self._cache.pool.num_free,
            cached_blocks=self._cache.tree.num_blocks,
            used_blocks=self.num_blocks - self._cache.pool.num_free - self._cache.tree.num_evictable_blocks,
            evicted_blocks=self._cache.tree.num_evicted,
            preemptions=self._scheduler.num_preemptions,
            prompt_tokens_by_source=self._accounts.by_source,
            reuse=self._accounts.reuse,
            generated_tokens=tokens.generated_tokens + tokens.forced_tokens,
            forced_tokens=tokens.forced_tokens,
            drafted_tokens=tokens.drafted_tokens,
            accepted_tokens=tokens.accepted_tokens,
            drafts=self._drafter.counters(),
            damaged_draft_files=self._drafter.num_damaged_files,
            step_s=counters.step_s,
            steps_by_time=tuple(counters.steps_by_time),
            model_s=counters.model_s,
            cache=self._cache.stats(),
            tiers=() if self._cache.transfer is None else self._cache.transfer.counters(),
        )

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block and lock is accounted for. For tests: visits everything."""
        self._cache.pool.check_integrity()
        self._cache.tree.check_integrity()
        self._scheduler.check_integrity()
        own = sum(
            len(sequence.held.block_ids) - sequence.held.num_cached_tokens // self.block_size
            for sequence in (*self._scheduler.running, *self._scheduler.loading)
            if sequence.held is not None
        )
        if self._under_way is not None:
            own += sum(len(chunk.blocks) for chunk in self._under_way.plan.chunks)
        own += 0 if self._cache.transfer is None else self._cache.transfer.num_hanging_blocks
        assert self._cache.pool.num_free + self._cache.tree.num_blocks + own == self.num_blocks, "a block has no owner"

    # -- parts of a step ------------------------------------------------------------------------------------------

    def _tend(self) -> None:
        if self._cache.tend():
            self._scheduler.note_room()

    def _take_compiled(self) -> None:
        """Turns whose grammars are compiled wait for their first step."""
        for sequence in self._grammars.take_compiled():
            if sequence.finish_reason is None:
                sequence.state = SequenceState.WAITING
                self._scheduler.add(sequence)
            else:
                self._finish(sequence, sequence.finish_reason)

    def _launch_next(self, started: float) -> _StepUnderWay | None:
        """Plan a step with all that is known, and launch it. None: there is nothing to compute."""
        plan = self._scheduler.schedule()
        self._last_plans = (plan,)
        for sequence in plan.preempted:
            self._tables.forget(sequence)
        self._kv_cache.copy(plan.copies)
        for load in plan.loads:
            assert self._cache.transfer is not None
            self._cache.transfer.start(load)
        for sequence in plan.expired:
            self._let_report(sequence)
        if not plan.chunks:
            return None
        launched = self._launch(plan, started)
        self._complete(plan)
        return launched

    def _launch_ahead(self, present: _StepUnderWay, started: float) -> _StepUnderWay | None:
        """Launch the step after ``present`` before that is done. None: it has to know the tokens."""
        plan = self._scheduler.schedule_ahead(present.plan)
        if plan is None:
            return None
        self._last_plans = (present.plan, plan)
        for sequence in plan.expired:
            self._let_report(sequence)
        place = {row.sequence: index for index, row in enumerate(present.rows)}
        return self._launch(plan, started, np.array([place[chunk.sequence] for chunk in plan.chunks]))

    def _launch(self, plan: StepPlan, started: float, previous: npt.NDArray[np.int64] | None = None) -> _StepUnderWay:
        """Begin to compute ``plan``. ``previous``: rows of the step under way that give its tokens."""
        arrays = build_arrays(plan, self._tables, self.block_size)
        masks = self._grammars.start_masks(arrays.rows)
        model_started = self._clock()
        launched = self._steps.launch(arrays, masks, previous)
        return _StepUnderWay(plan, arrays.rows, launched, started, model_started, self._clock())

    def _complete(self, plan: StepPlan) -> None:
        """Let others find the blocks that ``plan`` fills: whatever reads them is launched later."""
        for sequence, indices in self._scheduler.complete(plan).items():
            self._tables.replace(sequence, indices)

    def _read(self, step: _StepUnderWay) -> list[Sequence]:
        """Wait for the tokens of a step; returns the turns that got any. Those that end with them are ended."""
        plan, sampled = step.plan, step.launched.result()
        now = self._clock()
        since = max(step.model_started, self._read_at)  # until then the device was at the step before
        self._learn(plan, now - since if self._steps.goes_on_alone else step.returned - since)
        if plan.only_decodes:
            self._drafter.stepped(plan.num_tokens, now - since)
        advanced = self._results.append(plan, sampled, now)
        for sequence in advanced:
            if sequence.finish_reason is not None:
                self._finish(sequence, sequence.finish_reason)
        ended = self._clock()
        self._count(plan, ended - max(step.started, self._read_at))
        self._read_at = ended
        return advanced

    def _learn(self, plan: StepPlan, model_s: float) -> None:
        """The model took so long: a prefill that was alone in its step corrects the cost model."""
        self._counters.model_s += model_s
        if self._cache.transfer is not None and len(plan.chunks) == 1 and plan.chunks[0].num_own_tokens > 1:
            self._cache.transfer.cost.observe_prefill(plan.chunks[0].num_tokens, plan.chunks[0].start, model_s)

    def _count(self, plan: StepPlan, seconds: float) -> None:
        self._counters.steps += 1
        self._counters.step_s += seconds
        self._counters.steps_by_time[bisect.bisect_left(STEP_TIMES, seconds)] += 1
        self._scheduler.observe(plan, seconds)

    def _end_aborted(self) -> None:
        aborted, self._aborted = self._aborted, []
        for sequence in aborted:
            if sequence.finish_reason is None:
                self._finish(sequence, FinishReason.ABORTED)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.state is SequenceState.PREPARING:  # the scheduler has not heard of it
            sequence.state, sequence.finish_reason = SequenceState.FINISHED, reason
        else:
            self._scheduler.finish(sequence, reason)
        self._let_report(sequence)

    def _let_report(self, sequence: Sequence) -> None:
        """The scheduler has no more of ``sequence``: its last output comes with this step or the next."""
        self._tables.forget(sequence)
        self._drafter.ended(sequence)
        del self._turns[sequence.turn_id]
        self._ended.append(sequence)

    def _report(self, advanced: Iterable[Sequence], now: float) -> list[TurnOutput]:
        ended, self._ended = self._ended, []
        reported = dict.fromkeys([*advanced, *ended])
        outputs = [sequence.take_output(now) for sequence in reported]
        return [output for output in outputs if output is not None]
