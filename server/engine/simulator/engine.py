"""An engine without a model: scheduler, tree and pool are the real ones, steps take the time that a formula says."""

from __future__ import annotations

import dataclasses
import itertools
import random

from ....sessions.cache.block_pool import BlockPool
from ....sessions.cache.keys import BlockKeys, KVFingerprint
from ....sessions.cache.path_ends import PathEnds
from ....sessions.cache.prefix_cache import PrefixCache
from ....sessions.cache.radix_tree import RadixTree
from ....sessions.cache.seen_prefixes import SeenPrefixes
from ..engine_config import EngineConfig
from ..messages import FinishReason, Priority, QueueStats, SubmitTurn
from ..prompt_accounts import PromptAccounts
from ..scheduler import Scheduler, StepPlan
from ..sequence import Sequence
from .step_cost import StepCost

SEEN_BLOCKS = 1 << 12  # the accounts of what could be reused are of no interest here


@dataclasses.dataclass(slots=True)
class TurnRecord:
    """What became of a turn. Times are seconds on the simulated clock; None: it never came so far."""

    turn: SubmitTurn
    arrival: float
    due: float
    num_cached: int = 0
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    longest_gap: float = 0.0  # between two of its tokens
    reason: FinishReason | None = None

    @property
    def first_token_s(self) -> float | None:
        """From its arrival to its first token."""
        return None if self.first_token is None else self.first_token - self.arrival


@dataclasses.dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: when it ended, how long it took, what it did."""

    ended: float
    seconds: float
    decode_tokens: int
    prefill_tokens: int
    num_running: int
    num_waiting: int


class SimulatedEngine:
    """Turns go in, time goes by, records come out. One sampled token is as good as another here."""

    def __init__(self, config: EngineConfig, cost: StepCost, num_blocks: int, seed: int = 0) -> None:
        self.now = 0.0
        self._cost = cost
        self._chance = random.Random(seed)
        self._block_size = config.block_size
        self._num_blocks = num_blocks
        self._pool = BlockPool(num_blocks)
        self._tree = RadixTree(self._pool, config.block_size)
        fingerprint = KVFingerprint("simulated", "", "", config.block_size, 1, "")
        ends = PathEnds(self._tree, lambda: self.now, budget_blocks=0)
        cache = PrefixCache(self._pool, self._tree, BlockKeys(fingerprint), ends)
        accounts = PromptAccounts(SeenPrefixes(config.block_size, SEEN_BLOCKS))
        self.scheduler = Scheduler(config, cache, accounts, lambda: self.now)
        self._accounts = accounts
        self._order = itertools.count()
        self._open: dict[str, Sequence] = {}
        self.records: dict[str, TurnRecord] = {}
        self.steps: list[StepRecord] = []
        self.widest_spread = 0.0  # between tenants that waited with interactive turns, in tokens

    @property
    def has_work(self) -> bool:
        return bool(self._open)

    @property
    def queues(self) -> tuple[QueueStats, ...]:
        return self.scheduler.queues()

    def computed_tokens(self, tenant: str, priority: Priority) -> float:
        """What counts against a tenant in a class."""
        return self.scheduler.served_tokens(tenant, priority)

    def submit(self, turn: SubmitTurn) -> None:
        """A turn arrives now."""
        room = self._num_blocks * self._block_size - len(turn.token_ids)
        sequence = Sequence(turn, min(room, turn.sampling.max_tokens or room), self.now, next(self._order))
        self._open[turn.turn_id] = sequence
        self.scheduler.add(sequence)
        self.records[turn.turn_id] = TurnRecord(turn, self.now, max(self.now, self.scheduler.due(sequence)))

    def abort(self, turn_id: str) -> None:
        """A client goes away now; harmless if its turn has ended."""
        sequence = self._open.get(turn_id)
        if sequence is not None:
            self.scheduler.finish(sequence, FinishReason.ABORTED)
            self._end(sequence)

    def step(self) -> StepPlan:
        """One step; the clock moves to its end."""
        plan = self.scheduler.schedule()
        for sequence in plan.expired:
            self._end(sequence)
        if plan.chunks:
            seconds = self._cost.seconds(plan.work, self._chance)
            self.now += seconds
            self._note_step(plan, seconds)
            self.scheduler.complete(plan)
            self._sample(plan)
            self.scheduler.observe(plan, seconds)
        self._accounts.take_admitted()
        self.widest_spread = max(self.widest_spread, self.scheduler.spread(Priority.INTERACTIVE))
        return plan

    def run_until(self, time: float) -> None:
        """Step until ``time`` has come or there is nothing to do; then the clock stands there."""
        while self._open and self.now < time:
            self.step()
        self.now = max(self.now, time)

    def run(self) -> None:
        """Step until all turns have ended."""
        while self._open:
            self.step()

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is accounted for."""
        self._pool.check_integrity()
        self._tree.check_integrity()
        self.scheduler.check_integrity()
        held = [sequence.held for sequence in self.scheduler.running if sequence.held is not None]
        own = sum(len(each.block_ids) - each.num_cached_tokens // self._block_size for each in held)
        assert self._pool.num_free + self._tree.num_blocks + own == self._num_blocks, "a block has no owner"

    # -- parts of a step ------------------------------------------------------------------------------------------

    def _note_step(self, plan: StepPlan, seconds: float) -> None:
        self.steps.append(
            StepRecord(
                ended=self.now,
                seconds=seconds,
                decode_tokens=plan.work.decode_tokens,
                prefill_tokens=plan.work.prefill_tokens,
                num_running=len(self.scheduler.running),
                num_waiting=self.scheduler.num_waiting,
            )
        )

    def _sample(self, plan: StepPlan) -> None:
        ending = [chunk for chunk in plan.chunks if chunk.reaches_end]
        for chunk in ending:
            sequence = chunk.sequence
            sequence.append((sequence.order * 7919 + sequence.num_tokens) % (1 << 31), None)
            self.scheduler.accept([chunk], chunk)
            self._note_token(self.records[sequence.turn_id])
        for sequence in [chunk.sequence for chunk in ending]:
            if sequence.finish_reason is not None:
                self.scheduler.finish(sequence, sequence.finish_reason)
                self._end(sequence)

    def _note_token(self, record: TurnRecord) -> None:
        if record.last_token is None:
            record.first_token = self.now
        else:
            record.longest_gap = max(record.longest_gap, self.now - record.last_token)
        record.last_token = self.now

    def _end(self, sequence: Sequence) -> None:
        del self._open[sequence.turn_id]
        record = self.records[sequence.turn_id]
        record.ended, record.reason, record.started = self.now, sequence.finish_reason, sequence.admitted
        record.num_cached = sequence.tokens_by_source.cached if sequence.tokens_by_source is not None else 0
