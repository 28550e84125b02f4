"""Copies of KV between the device pool and the tiers below it.

Loads run on two I/O threads, beside the steps of other turns: one for those that ask the shared tier, which may be
slow, one for all others. The blocks that a load fills belong to a turn that waits for it, so nobody reads them
meanwhile. Copies out of the pool (an evicted block, a turn's new blocks) are begun at once, by the step's own thread.
In memory they are over at once too: memory copies; what is slow about them happens behind the tiers' own queues. A
GPU's blocks cross the bus beside the next steps, and a thread hands them to the tiers; until then they are in none.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Items

from ...sessions.cache.cost_model import CostModel, Source
from ...sessions.cache.lifetime import Lifetime
from ...sessions.cache.lower_tiers import LowerTiers
from ...sessions.cache.prefix_cache import TailKey
from ...sessions.cache.radix_node import Evicted
from ...sessions.cache.tiers import Block, Tier
from .block_loads import BlockLoad, FinishedLoad, LoadDecision, TailSource
from .load_threads import LoadThreads
from .messages import TierCounters
from .pool_blocks import PoolBlocks
from .sequence import Sequence
from .tier_counters import tier_counters
from .tier_loads import TierLoads

logger = logging.getLogger(__name__)

LOAD_DEADLINE_FACTOR = 4.0  # times the predicted seconds of computing it: later than that it is computed
LEAST_DEADLINE_S = 0.25
GIVE_UP_AFTER_S = 0.25  # after its deadline a load is given up: it waits for a device that does not answer
FIRST_SHARED_TOKENS = 256  # from so many on the shared tier is asked although no load from it was measured yet


class KVTransfer:
    """Alone moves blocks between the pool and the lower tiers. The engine's step owns it; its threads only load."""

    def __init__(
        self,
        pool: PoolBlocks,
        block_size: int,
        tiers: LowerTiers,
        cost: CostModel,
        on_loaded: Callable[[FinishedLoad], None] = lambda load: None,
    ) -> None:
        """``on_loaded`` hears of each load that ended, by the step."""
        self._pool = pool
        self._block_size = block_size
        self.tiers = tiers
        self.cost = cost
        self._on_loaded = on_loaded
        self._threads = LoadThreads(TierLoads(pool, block_size, tiers).load)
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
        load_s = self.cost.load_s(Tier.SHARED, count * self._pool.block_bytes)
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
                if self.cost.load_s(tier, self._pool.block_bytes, source.cached) >= saved_s:
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
                self.cost.observe_load(tier, blocks * self._pool.block_bytes, finished.seconds[tier], cached)
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
        keys, salt, lifetime = list(evicted.content_keys), evicted.salt, evicted.lifetime

        def store(start: int, blocks: list[Block]) -> None:
            for key, block in zip(keys[start:], blocks, strict=False):
                self.tiers.demote(key, block, salt, lifetime)

        self._pool.copy_out(evicted.blocks, store)
        return tier

    def bring_back_s(self, start: int) -> float:
        """Seconds to have a block again that stands after ``start`` tokens of its path, once it was demoted."""
        return self.cost.bring_back_s(self.tiers.first_local, start)

    def persist(self, content_keys: Items[bytes], block_ids: Items[int], first: int, tenant: str) -> None:
        """Write a path's blocks from ``first`` on behind, to where they outlive the process, and share the path."""
        for piece in self._pieces(self.tiers.first_to_persist(content_keys, first), len(content_keys)):
            keys = list(content_keys[piece.start : piece.stop])
            new = max(0, first - piece.start)

            def store(start: int, blocks: list[Block], keys: list[bytes] = keys, new: int = new) -> None:
                self.tiers.persist(keys[start : start + len(blocks)], blocks, max(0, new - start), tenant)

            self._pool.copy_out(block_ids[piece.start : piece.stop], store)

    def persist_tail(self, content_key: bytes, block: int, tenant: str) -> None:
        """Write the half-full block at a path's end behind."""
        self._pool.copy_out([block], lambda _, blocks: self.tiers.persist_tail(content_key, blocks[0], tenant))

    def keep_all(self, content_keys: Items[bytes], block_ids: Items[int], tenant: str, lifetime: Lifetime) -> None:
        """Keep a whole path, which stays as it is meanwhile, in memory, and where it outlives the process if it may.
        Waits for the disk: for another thread than the step's."""
        for piece in self._pieces(0, len(block_ids)):
            start = piece.start
            for blocks in self._pool.read(block_ids[piece.start : piece.stop]):
                self.tiers.keep_all(content_keys[start : start + len(blocks)], blocks, tenant, lifetime)
                start += len(blocks)

    def counters(self) -> tuple[TierCounters, ...]:
        """Of each lower tier, for whoever looks at the engine."""
        return tuple(
            tier_counters(tier, stats, self.cost.load_accuracy.get(tier)) for tier, stats in self.tiers.stats().items()
        )

    def close(self) -> None:
        """Finish the loads in hand and let what was stored reach the disk."""
        self._threads.close()
        self._pool.close()
        self.tiers.close()

    def _pieces(self, start: int, stop: int) -> list[range]:
        """Blocks of a path from ``start`` to ``stop`` in pieces that the pool gives at once, each of whole entries of
        the shared tier."""
        size = 1 if self.tiers.shared is None else self.tiers.shared.blocks_per_entry
        step = max(1, self._pool.at_once // size) * size
        return [range(first, min(first + step, stop)) for first in range(start, stop, step)]


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
