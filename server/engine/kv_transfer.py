"""Copies of KV between the device pool and the tiers below it.

Loads run on two I/O threads, beside the steps of other turns: one for those that ask the shared tier, which may be
slow, one for all others. The blocks that a load fills belong to a turn that waits for it, so nobody reads them
meanwhile. Copies out of the pool (an evicted block, a turn's new blocks) are made at once, by the step's own thread:
they are memory copies; what is slow about them happens behind the tiers' own queues.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Items

import numpy as np

from ...sessions.cache.cost_model import CostModel, Source
from ...sessions.cache.lower_tiers import LowerTiers
from ...sessions.cache.prefix_cache import TailKey
from ...sessions.cache.radix_node import Evicted
from ...sessions.cache.tiers import Entry, LoadOutcome, Tier
from .block_loads import BlockLoad, FinishedLoad, LoadDecision, TailSource
from .kv_cache import KVCache
from .load_threads import LoadThreads
from .messages import TierCounters
from .sequence import Sequence
from .tier_counters import tier_counters

logger = logging.getLogger(__name__)

LOAD_DEADLINE_FACTOR = 4.0  # times the predicted seconds of computing it: later than that it is computed
LEAST_DEADLINE_S = 0.25
GIVE_UP_AFTER_S = 0.25  # after its deadline a load is given up: it waits for a device that does not answer
LOOK_UP_S = 0.1  # the shared tier's time to say what it has; no answer is no
FIRST_SHARED_TOKENS = 256  # from so many on the shared tier is asked although no load from it was measured yet


class KVTransfer:
    """Alone moves blocks between the pool and the lower tiers. The engine's step owns it; its threads only load."""

    def __init__(
        self,
        kv_cache: KVCache,
        tiers: LowerTiers,
        cost: CostModel,
        on_loaded: Callable[[FinishedLoad], None] = lambda load: None,
    ) -> None:
        """``on_loaded`` hears of each load that ended, by the step."""
        rows = kv_cache.rows()
        if rows is None:
            raise ValueError("blocks of a GPU's pool need staging buffers")
        self._block_size = kv_cache.layout.block_size
        self._rows = rows
        self.tiers = tiers
        self.cost = cost
        self._on_loaded = on_loaded
        self._threads = LoadThreads(self._load)
        self._hanging: dict[BlockLoad, Tier] = {}

    # -- the step's side ------------------------------------------------------------------------------------------

    def plan(self, num_device_blocks: int, content_keys: list[bytes], num_tokens: int) -> LoadDecision:
        """What to load of the blocks after the first ``num_device_blocks`` of a prompt of ``num_tokens``: those that
        some tier has, as far as loading them is predicted to be faster than computing them. What the shared tier has is
        not known yet: it is asked for all that follows, where that would pay. Counts nothing: see ``decided``."""
        found = self.tiers.asked_for_cached(self.tiers.sources(content_keys), content_keys)
        num_found = sum(source.num_blocks for source in found)
        plan = self.cost.plan_load([Source(Tier.DEVICE, num_device_blocks), *found], num_tokens)
        worth = plan.num_blocks - num_device_blocks
        if worth < num_found:
            load, leave = _divided(found, worth)
            return LoadDecision(load, leave, plan.load_s, plan.compute_s)
        shared = self._ask_shared_for(num_device_blocks + num_found, num_device_blocks + len(content_keys))
        load = [*found, Source(Tier.SHARED, shared)] if shared else found
        return LoadDecision(load, [], plan.load_s, plan.compute_s)

    def _ask_shared_for(self, start: int, stop: int) -> int:
        """How many of a path's blocks from ``start`` on, ``stop`` at most, to ask the shared tier for."""
        shared = self.tiers.shared
        if shared is None or not shared.is_usable:
            return 0
        count = stop - stop % shared.blocks_per_entry - start
        if count <= 0:
            return 0
        load_s = self.cost.load_s(Tier.SHARED, count * self._rows.shape[1])
        if load_s == math.inf:
            return count if count * self._block_size >= FIRST_SHARED_TOKENS else 0
        compute_s = self.cost.prefill_s(count * self._block_size, start * self._block_size)
        return count if load_s < compute_s else 0

    def with_tail(self, decision: LoadDecision, candidates: Items[TailKey]) -> LoadDecision:
        """``decision``, and the first of ``candidates`` that a local tier has if loading it is predicted faster."""
        for candidate in candidates:
            tier = self.tiers.holder(candidate.content_key)
            if tier is not None:
                saved_s = self.cost.prefill_s(candidate.num_tokens + 1, 0) - self.cost.prefill_s(1, 0)
                (source,) = self.tiers.asked_for_cached([Source(tier, 1)], [candidate.content_key])
                if self.cost.load_s(tier, self._rows.shape[1], source.cached) >= saved_s:
                    break
                tail = TailSource(tier, candidate.num_tokens, candidate.content_key, source.cached)
                return dataclasses.replace(decision, tail=tail)
        return decision

    def load_of(
        self, sequence: Sequence, decision: LoadDecision, content_keys: list[bytes], first_block: int
    ) -> BlockLoad:
        """What was decided, as a load of the first blocks of ``content_keys``, the path's from ``first_block`` on, to
        the sequence's blocks. Its deadline counts from now: a load that waits too long behind others is late too."""
        assert sequence.held is not None
        sources, count = list(decision.load), decision.num_blocks
        content_keys, num_tokens = content_keys[:count], count * self._block_size
        if decision.tail is not None:
            sources.append(Source(decision.tail.tier, 1, decision.tail.cached))
            content_keys = [*content_keys[: count - 1], decision.tail.content_key]
            num_tokens += decision.tail.num_tokens - self._block_size
        compute_s = self.cost.prefill_s(num_tokens, 0)
        deadline = time.monotonic() + max(LEAST_DEADLINE_S, LOAD_DEADLINE_FACTOR * compute_s)
        block_ids = sequence.held.block_ids[first_block : first_block + count]
        return BlockLoad(sequence, sources, content_keys, block_ids, first_block, deadline, num_tokens)

    def start(self, load: BlockLoad) -> None:
        """Begin to write to the blocks of ``load``, which nobody else touches until it is done."""
        self._threads.start(load)

    def is_late(self, load: BlockLoad) -> bool:
        """Whether ``load`` should have ended."""
        return time.monotonic() > load.deadline

    def finished(self) -> list[FinishedLoad]:
        """The loads that ended since the last call; the cost model has learnt from them."""
        ended = self._threads.finished()
        for finished in ended:
            for tier, blocks in finished.blocks.items():
                cached = finished.cached_blocks / blocks if tier is Tier.DISK and blocks else 0.0
                self.cost.observe_load(tier, blocks * self._rows.shape[1], finished.seconds[tier], cached)
            self._on_loaded(finished)
        return ended

    def give_up(self) -> list[BlockLoad]:
        """The loads that hang, long after their deadline. Nobody waits for them any more; but a read of the system's
        may still write to their blocks, so these are in use until ``returned`` has them."""
        given_up = self._threads.give_up(time.monotonic() - GIVE_UP_AFTER_S)
        for load in given_up:
            tier = load.tier_now
            if tier is not None:
                logger.warning("a read from the %s tier hangs", tier)
                self._hanging[load] = tier
                self.tiers.hangs(tier)
        return given_up

    def returned(self) -> list[BlockLoad]:
        """Loads that were given up and have ended after all: nothing writes to their blocks any more."""
        returned = self._threads.returned()
        for load in returned:
            tier = self._hanging.pop(load, None)
            if tier is not None:
                self.tiers.answers_again(tier)
        return returned

    @property
    def num_hanging_blocks(self) -> int:
        """Blocks of loads that were given up and have not ended."""
        return self._threads.num_given_up_blocks

    def decided(self, decision: LoadDecision) -> None:
        """Count what a turn that was admitted does by ``decision``."""
        tail = [] if decision.tail is None else [Source(decision.tail.tier, 1)]
        self.cost.count_loads([*decision.load, *tail], decision.leave)

    def demote(self, evicted: Evicted) -> Tier | None:
        """The tree is about to give up blocks. Returns the tier that they move on to; None: they do not, since they
        were superseded, must not go there, or are cheaper to compute again than to move."""
        tier = self.tiers.first_for(evicted.lifetime)
        if tier is None or evicted.superseded:
            return None
        probability = self.tiers.reuse_probability
        if not self.cost.worth_demoting(tier, len(evicted.blocks), evicted.start, probability):
            return None
        for key, block in zip(evicted.content_keys, evicted.blocks, strict=True):
            self.tiers.demote(key, self._rows[block], evicted.salt, evicted.lifetime)
        return tier

    def bring_back_s(self, start: int) -> float:
        """Seconds to have a block again that stands after ``start`` tokens of its path, once it was demoted."""
        return self.cost.bring_back_s(self.tiers.first_local, start)

    def persist(self, content_keys: Items[bytes], block_ids: Items[int], first: int, tenant: str) -> None:
        """Write a path's blocks from ``first`` on behind, to where they outlive the process, and share the path."""
        blocks = [self._rows[block] for block in block_ids[: len(content_keys)]]
        self.tiers.persist(content_keys, blocks, first, tenant)

    def persist_tail(self, content_key: bytes, block: int, tenant: str) -> None:
        """Write the half-full block at a path's end behind."""
        self.tiers.persist_tail(content_key, self._rows[block], tenant)

    def persist_all(self, content_keys: Items[bytes], block_ids: Items[int], tenant: str) -> None:
        """Write a whole path that stays as it is meanwhile. Waits for the disk: for another thread than the step's."""
        self.tiers.persist_all(content_keys, [self._rows[block] for block in block_ids], tenant)

    def keep_in_memory(self, content_keys: Items[bytes], block_ids: Items[int], tenant: str) -> None:
        """As ``persist_all``, of a path that must not outlive the process."""
        self.tiers.keep_in_memory(content_keys, [self._rows[block] for block in block_ids], tenant)

    def counters(self) -> tuple[TierCounters, ...]:
        """Of each lower tier, for whoever looks at the engine."""
        return tuple(
            tier_counters(tier, stats, self.cost.load_accuracy.get(tier)) for tier, stats in self.tiers.stats().items()
        )

    def close(self) -> None:
        """Finish the loads in hand and let what was stored reach the disk."""
        self._threads.close()
        self.tiers.close()

    # -- the I/O threads' side ------------------------------------------------------------------------------------

    def _load(self, load: BlockLoad) -> FinishedLoad:
        blocks: dict[Tier, int] = {}
        tokens: dict[Tier, int] = {}
        seconds: dict[Tier, float] = {}
        first, cached = 0, 0.0
        for source in load.sources:
            started = time.monotonic()
            wanted = range(first, first + source.num_blocks)
            load.tier_now = source.tier
            hits = self._load_from(source.tier, load, wanted)
            blocks[source.tier] = blocks.get(source.tier, 0) + hits
            cached += hits * source.cached
            start, stop = (min(i * self._block_size, load.num_tokens) for i in (first, first + hits))
            tokens[source.tier] = tokens.get(source.tier, 0) + stop - start
            seconds[source.tier] = seconds.get(source.tier, 0.0) + time.monotonic() - started
            if hits < source.num_blocks:
                break
            first += source.num_blocks
        return FinishedLoad(load, blocks, tokens, seconds, cached)

    def _load_from(self, tier: Tier, load: BlockLoad, wanted: range) -> int:
        """How many leading ones of the blocks ``wanted`` came from ``tier``."""
        try:
            if tier is Tier.SHARED:
                return self._load_shared(load, wanted, load.deadline)
            entries = [Entry(load.content_keys[i], (self._rows[load.block_ids[i]],)) for i in wanted]
            return _leading_hits(self.tiers[tier].load(entries, load.deadline))
        except Exception:  # a tier that breaks its promise not to raise must not leave turns waiting for ever
            logger.exception("the %s tier raised, which it must not", tier)
            return 0

    def _load_shared(self, load: BlockLoad, wanted: range, deadline: float) -> int:
        """Load what the shared tier has of the blocks ``wanted``, indices from ``first_block`` on; returns how many
        leading ones came."""
        shared = self.tiers.shared
        assert shared is not None
        size = shared.blocks_per_entry
        start = (
            load.first_block + wanted.start
        ) // size * size - load.first_block  # of the entry; negative: on the device
        lasts = range(start + size - 1, wanted.stop, size)
        look_up_by = min(deadline, time.monotonic() + LOOK_UP_S)
        present = shared.contains_by([load.content_keys[last] for last in lasts], look_up_by)
        num_present = next((i for i, there in enumerate(present) if not there), len(present))
        scratch = np.empty((size, self._rows.shape[1]), dtype=np.uint8)  # for blocks that are there already
        entries = [
            Entry(
                load.content_keys[last],
                tuple(
                    self._rows[load.block_ids[i]] if i >= wanted.start else scratch[last - i]
                    for i in range(last + 1 - size, last + 1)
                ),
            )
            for last in lasts[:num_present]
        ]
        hits = _leading_hits(shared.load(entries, deadline)) if entries else 0
        return max(0, start + hits * size - wanted.start)


def _leading_hits(outcomes: Items[LoadOutcome]) -> int:
    return next((i for i, outcome in enumerate(outcomes) if outcome is not LoadOutcome.HIT), len(outcomes))


def _divided(sources: list[Source], count: int) -> tuple[list[Source], list[Source]]:
    """The first ``count`` blocks of ``sources``, and the others."""
    first: list[Source] = []
    others: list[Source] = []
    for source in sources:
        taken = min(count, source.num_blocks)
        if taken:
            first.append(dataclasses.replace(source, num_blocks=taken))
        if taken < source.num_blocks:
            others.append(dataclasses.replace(source, num_blocks=source.num_blocks - taken))
        count -= taken
    return first, others
