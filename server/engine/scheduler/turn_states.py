"""Which turns wait, load and run, and each way from one of these to another.

A turn that waits holds no blocks, so those that run can always go on: when the pool has none left, the turn that is
last in order gives its blocks to the tree and waits again.

A turn whose prefix is in a lower tier is admitted and *loads*: it has its blocks, but takes no part in steps until the
I/O thread has filled them, or has given up; then it computes the rest.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable

from ....sessions.cache.prefix_cache import PrefixCache
from ....sessions.cache.radix_node import Match
from ....sessions.cache.tiers import Tier
from ..block_loads import BlockLoad, FinishedLoad, LoadDecision
from ..engine_config import EngineConfig
from ..kv_transfer import KVTransfer
from ..messages import FinishReason, Priority
from ..prompt_accounts import PromptAccounts
from ..sequence import Sequence, SequenceState
from .fair_shares import FairShares
from .giving_way import offline_victim, unfair_victim
from .in_flight import InFlightPrefixes
from .plan import StepPlan
from .queue_counts import QueueCounts
from .step_time import StepTimeModel
from .turn_blocks import Taken, TurnBlocks
from .urgency import ClassPatience, Urgency, due_at
from .waiting_turns import WaitingTurns

SPARE_BLOCKS_A_TURN = 4  # that what is loaded ahead leaves to each turn that runs
EXAMINED_A_STEP = 16  # waiting turns that one step looks at, at most


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.turn.priority, sequence.order


class TurnStates:
    """Alone owns which turns wait, load and run. ``transfer`` None: there are no tiers below the device's; ``times``
    says what prefills take."""

    def __init__(
        self,
        config: EngineConfig,
        cache: PrefixCache,
        accounts: PromptAccounts,
        clock: Callable[[], float],
        transfer: KVTransfer | None,
        times: StepTimeModel,
    ) -> None:
        self._max_sequences = config.max_sequences
        self._cache = cache
        self._accounts = accounts
        self._blocks = TurnBlocks(cache, accounts, transfer)
        self._transfer = transfer
        self._clock = clock
        self._times = times
        self._patience = ClassPatience.of(config)
        self.shares = [FairShares(config.weights) for _ in Priority]
        self.waiting = WaitingTurns(self._patience, self.shares)
        self._running: list[Sequence] = []  # by rank
        self._loading: dict[Sequence, BlockLoad] = {}  # those ended meanwhile only wait for the I/O thread
        self._in_flight = InFlightPrefixes()
        self._did_not_fit: Sequence | None = None  # when it was tried last; nothing was given back since
        self.counts = QueueCounts()
        self._examined = 0  # in this step
        self.num_preemptions = 0

    @property
    def running(self) -> tuple[Sequence, ...]:
        """By class, then by arrival."""
        return tuple(self._running)

    @property
    def loading(self) -> tuple[Sequence, ...]:
        return tuple(self._loading)

    def add(self, sequence: Sequence) -> None:
        """Let a turn wait for its first step."""
        sequence.cached_on_arrival = self._wait(sequence)

    def begin_step(self, plan: StepPlan, now: float) -> None:
        """Do what time and the I/O thread have brought, and what makes way for a turn that has more right to run; note
        it in ``plan``."""
        self._examined = 0
        self._take_finished_loads()
        plan.expired = self.expire(now)
        self.waiting.lift(now)
        self._clear_the_way(plan, now)

    def let_time_pass(self, now: float) -> bool:
        """Whether nothing but the turns that run takes part in the next step, and none of these gives way. Turns may
        have been lifted to the class above."""
        self.waiting.lift(now)
        return not self._may_change(now)

    def computed(self, sequence: Sequence, num_computed: int) -> list[int]:
        """``num_computed`` tokens of a turn have their KV now: let others find the blocks that became full. Returns
        which of its blocks are others now."""
        sequence.num_computed = num_computed
        changed = self._blocks.commit(sequence)
        let_go = self._in_flight.advance(sequence, num_computed // self._blocks.block_size)
        if let_go:
            self._let_go(let_go)
        return changed

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Reserve blocks so that ``num_tokens`` tokens fit; False if the pool cannot give them without preempting
        somebody."""
        return self._blocks.grow(sequence, num_tokens)

    def next_to_start(self) -> Sequence | None:
        """The turn that waits and is to start next; None if there is none that can. On the way to it, turns whose
        prefix is being computed right now are put aside until it is there."""
        self._let_late_ones_go()
        while self._has_a_place and self._examined < EXAMINED_A_STEP:
            sequence = self.waiting.first()
            if sequence is None or sequence is self._did_not_fit:
                return None
            self._examined += 1
            found = self._in_flight.find(sequence.content_keys, self._blocks.num_cached_blocks(sequence))
            if found is None:
                return sequence
            self._in_flight.follow(sequence, self.waiting.urgency(sequence), *found)
            self.waiting.park(sequence)
        return None

    def start(self, sequence: Sequence, plan: StepPlan, now: float) -> None:
        """Move a turn from waiting to running, or to loading, with what the cache has of it. If the pool has no room it
        goes on waiting, and so do those behind it."""
        taken = self._blocks.take(sequence, spare_blocks=len(self._running) + len(self._loading))
        while taken is None and not self._running and not self._loading and self._blocks.make_way():
            taken = self._blocks.take(sequence, spare_blocks=0)
        if taken is None:
            self._did_not_fit = sequence
            return
        level = self.waiting.urgency(sequence).level
        self.shares[level].choose(sequence.turn.tenant)
        self.waiting.remove(sequence)
        sequence.charged_level = level
        if sequence.admitted is None:
            sequence.admitted = now
            self.counts.note_start(sequence, now)
        self._begin(sequence, taken, plan, now)

    def urgency(self, sequence: Sequence, now: float) -> Urgency:
        """Of a turn that runs: the less is left to compute, the sooner it is due."""
        left_s = self._times.prefill_s(sequence.num_uncomputed, sequence.num_computed)
        own = Urgency(self._patience.level(sequence, now), due_at(sequence, left_s), sequence.order)
        return self._in_flight.urgency(sequence, own)

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """The first ``num_tokens`` of ``sequence`` count against its tenant; each counts once."""
        if num_tokens > sequence.num_charged:
            self.shares[sequence.charged_level].charge(sequence.turn.tenant, num_tokens - sequence.num_charged)
            sequence.num_charged = num_tokens

    def make_room(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Reserve the blocks of all tokens of ``sequence``; False if it was preempted itself."""
        while not self._blocks.grow(sequence, sequence.num_tokens):
            if len(self._running) == 1 and self._blocks.make_way():
                continue
            victim = self._running[-1]
            self._preempt(victim, plan)
            if victim is sequence:
                return False
        return True

    def expire(self, now: float) -> list[Sequence]:
        """End the turns that have waited past their deadline."""
        expired = self.waiting.expired(now)
        for sequence in expired:
            self.counts.note_expiry(sequence, now)
            self.finish(sequence, FinishReason.EXPIRED)
        return expired

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a turn, running or waiting; what it computed stays cached. One that loads gives its blocks back when the
        I/O thread, which still writes to them, is done."""
        sequence.finish_reason = reason
        match sequence.state:
            case SequenceState.LOADING:
                self._note_load_s(sequence)
                return
            case SequenceState.RUNNING:
                self._stop_running(sequence)
            case SequenceState.WAITING:
                self.waiting.remove(sequence)
                self._in_flight.leave(sequence)
            case SequenceState.FINISHED:
                raise AssertionError("a turn ends once")
        self._forget(sequence)

    def plan_load(self, sequence: Sequence) -> tuple[Match, LoadDecision]:
        """What a sequence that does not wait yet would find on the device, and load."""
        return self._blocks.plan(sequence)

    def load_ahead(self, sequence: Sequence) -> BlockLoad | None:
        """Let a sequence load what the lower tiers have of it, and then end: it takes no part in steps. None: there is
        nothing to load, or no room that others do not need: those that run, to go on, and those that wait, to start."""
        busy = len(self._running) + len(self._loading)
        if busy + len(self.waiting) >= self._max_sequences:
            return None
        spare = SPARE_BLOCKS_A_TURN * (busy + 1) + sum(self._cache.blocks_for(each.num_tokens) for each in self.waiting)
        load = self._blocks.take_ahead(sequence, spare)
        if load is None:
            return None
        sequence.state, sequence.finish_reason = SequenceState.LOADING, FinishReason.LENGTH
        sequence.load_started = self._clock()
        self._in_flight.begin(sequence, sequence.content_keys, sequence.num_computed // self._blocks.block_size)
        self._loading[sequence] = load
        return load

    def note_room(self) -> None:
        """Blocks became available otherwise than by a turn's end: one that did not fit may fit now."""
        self._did_not_fit = None

    def check_integrity(self) -> None:
        """Raise AssertionError unless all turns are where they say. For tests: visits everything."""
        self._in_flight.check_integrity()
        assert all(each.held is None for each in self.waiting), "a turn that waits holds blocks"
        assert all(each.held is not None for each in (*self._running, *self._loading)), "a turn runs without blocks"

    def _wait(self, sequence: Sequence) -> int:
        """Let a turn wait; returns how many of its tokens are cached on the device."""
        cached = self._blocks.look_up(sequence)
        num_uncached = sequence.num_tokens - cached - self._blocks.num_in_lower_tiers(sequence, cached)
        work_s = self._times.prefill_s(num_uncached, sequence.num_tokens - num_uncached)
        self.waiting.add(sequence, due_at(sequence, work_s), num_uncached, self._clock())
        return cached

    @property
    def _has_a_place(self) -> bool:
        return len(self._running) + len(self._loading) < self._max_sequences

    def _begin(self, sequence: Sequence, taken: Taken, plan: StepPlan, now: float) -> None:
        if taken.copy is not None:
            plan.copies.append(taken.copy)
        self._in_flight.begin(sequence, sequence.content_keys, sequence.num_computed // self._blocks.block_size)
        if taken.load is not None:
            sequence.state = SequenceState.LOADING
            sequence.load_started = now
            self._loading[sequence] = taken.load
            plan.loads.append(taken.load)
        else:
            self._run(sequence, sequence.num_computed, {})

    def _run(self, sequence: Sequence, num_matched: int, loaded: dict[Tier, int]) -> None:
        """Let an admitted turn take part in steps."""
        sequence.state = SequenceState.RUNNING
        bisect.insort(self._running, sequence, key=_rank)
        sequence.num_charged = max(sequence.num_charged, sequence.num_computed)
        self.charge(sequence, sequence.num_tokens)
        self._accounts.count(sequence, num_matched, loaded)

    # -- loads ----------------------------------------------------------------------------------------------------

    def _take_finished_loads(self) -> None:
        if self._transfer is None:
            return
        for load in self._transfer.finished():
            self._end_load(load)
        for hanging in self._transfer.give_up():
            self._leave_behind(hanging)
        for returned in self._transfer.returned():
            self._blocks.take_back(returned)
            self._did_not_fit = None

    def _leave_behind(self, load: BlockLoad) -> None:
        """A load hangs: its turn computes what it would have brought, in other blocks, or waits for these."""
        sequence = load.sequence
        del self._loading[sequence]
        fits = self._blocks.leave_behind(sequence, load)
        if sequence.finish_reason is not None:
            self._give_back(sequence)
            self._forget(sequence)
            return
        self._note_load_s(sequence)
        if fits:
            self._run(sequence, sequence.num_computed, {})
            return
        self._give_back(sequence)
        sequence.state, sequence.num_computed = SequenceState.WAITING, 0
        self._wait(sequence)

    def _end_load(self, load: FinishedLoad) -> None:
        """What was loaded is like what was computed; the turn goes on from there."""
        sequence = load.sequence
        del self._loading[sequence]
        num_matched = sequence.num_computed
        sequence.num_computed += load.num_tokens
        if sequence.finish_reason is not None:
            self._give_back(sequence)
            self._forget(sequence)
            return
        self._note_load_s(sequence)
        self._blocks.commit(sequence)
        self._run(sequence, num_matched, load.tokens)
        self._let_go(self._in_flight.advance(sequence, sequence.num_computed // self._blocks.block_size))

    def _note_load_s(self, sequence: Sequence) -> None:
        """Loads of the prompt alone: one after a preemption is a part of the seconds of decoding."""
        if sequence.first_token is None:
            sequence.load_s += self._clock() - sequence.load_started

    def _let_late_ones_go(self) -> None:
        """Nobody waits for a load that should have ended."""
        for sequence, load in self._loading.items():
            if self._transfer is not None and self._transfer.is_late(load):
                self._let_go(self._in_flight.end(sequence))

    def _let_go(self, followers: Iterable[Sequence]) -> None:
        """Put turns back into the order: what they waited for is there, or will not come."""
        for follower in followers:
            self.waiting.unpark(follower, self._clock())

    # -- giving back ----------------------------------------------------------------------------------------------

    def _may_change(self, now: float) -> bool:
        """Whether a turn may begin to run in the next step, or one that runs give way."""
        if self._loading or (self._transfer is not None and self._transfer.num_hanging_blocks):
            return True
        waits = self.waiting.first()
        if waits is None:
            return False
        starts = self._has_a_place and waits is not self._did_not_fit
        return starts or self._victim(waits, now) is not None

    def _clear_the_way(self, plan: StepPlan, now: float) -> None:
        """Preempt a turn if one that waits has more right to run and cannot start."""
        waits = self.waiting.first() if self._running else None
        if waits is None:
            self._did_not_fit = self._did_not_fit if self._running or self._loading else None
            return
        victim = self._victim(waits, now)
        if victim is not None:
            self._preempt(victim, plan)

    def _victim(self, waits: Sequence, now: float) -> Sequence | None:
        """The running turn that has less right to run than ``waits``, which cannot start beside it."""
        if waits is not self._did_not_fit and self._has_a_place:
            return None
        level, running = self.waiting.urgency(waits).level, self._running
        victim = offline_victim(running, level, self._patience, now)
        if victim is None and not self._has_a_place:
            victim = unfair_victim(running, waits, self.shares[level], level, self._patience, now)
        return victim

    def _preempt(self, sequence: Sequence, plan: StepPlan) -> None:
        self._stop_running(sequence)
        plan.preempted.append(sequence)
        sequence.state = SequenceState.WAITING
        sequence.num_computed = 0
        sequence.preemptions += 1
        self.num_preemptions += 1
        self._wait(sequence)

    def _stop_running(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        not_computed = sequence.num_charged - sequence.num_computed
        if not_computed > 0:
            sequence.num_charged = sequence.num_computed
            self.shares[sequence.charged_level].charge(sequence.turn.tenant, -not_computed)
            self.waiting.served_less(sequence.turn.tenant)
        self._give_back(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        self._blocks.give_back(sequence)
        self._did_not_fit = None
        self._let_go(self._in_flight.end(sequence))

    def _forget(self, sequence: Sequence) -> None:
        """A turn has ended."""
        sequence.state = SequenceState.FINISHED
        self.counts.note_end(sequence, self._clock())
