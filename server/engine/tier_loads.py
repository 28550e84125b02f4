"""Loads as the I/O threads do them: from tier to tier, to the blocks of the pool, in pieces that it takes at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from collections.abc import Sequence as Items

import numpy as np

from ...sessions.cache.lower_tiers import LowerTiers
from ...sessions.cache.shared_tier import SharedTier
from ...sessions.cache.tiers import Entry, LoadOutcome, Tier
from .block_loads import BlockLoad, FinishedLoad
from .pool_blocks import PoolBlocks

logger = logging.getLogger(__name__)

LOOK_UP_S = 0.1  # the shared tier's time to say what it has; no answer is no


class TierLoads:
    """Fills blocks of ``pool``. Safe for threads, each with a load of its own."""

    def __init__(self, pool: PoolBlocks, block_size: int, tiers: LowerTiers) -> None:
        self._pool = pool
        self._block_size = block_size
        self._tiers = tiers

    def load(self, load: BlockLoad) -> FinishedLoad:
        """Do ``load``, as far as its blocks come without a gap. Never raises."""
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
                return self._load_shared(load, wanted)
            return sum(self._load_pieces(tier, load, wanted))
        except Exception:  # a tier that breaks its promise not to raise must not leave turns waiting for ever
            logger.exception("a load from the %s tier failed, which it must not", tier)
            return 0

    def _load_pieces(self, tier: Tier, load: BlockLoad, wanted: range) -> Iterator[int]:
        """Load the blocks ``wanted`` from a local tier; yields how many leading ones of each piece came, and
        ends with the first piece that lacks some."""
        for first in range(wanted.start, wanted.stop, self._pool.at_once):
            piece = range(first, min(first + self._pool.at_once, wanted.stop))
            with self._pool.landing([load.block_ids[i] for i in piece]) as landing:
                entries = [
                    Entry(load.content_keys[i], (buffer,)) for i, buffer in zip(piece, landing.buffers, strict=True)
                ]
                hits = _leading_hits(self._tiers[tier].load(entries, load.deadline))
                landing.land(hits)
            yield hits
            if hits < len(piece):
                return

    def _load_shared(self, load: BlockLoad, wanted: range) -> int:
        """Load what the shared tier has of the blocks ``wanted``, indices from ``first_block`` on; returns how many
        leading ones came."""
        shared = self._tiers.shared
        assert shared is not None
        size = shared.blocks_per_entry
        on_path = load.first_block + wanted.start
        start = on_path // size * size - load.first_block  # of the entry; negative: on the device
        lasts = range(start + size - 1, wanted.stop, size)
        look_up_by = min(load.deadline, time.monotonic() + LOOK_UP_S)
        present = shared.contains_by([load.content_keys[last] for last in lasts], look_up_by)
        lasts = lasts[: next((i for i, there in enumerate(present) if not there), len(present))]
        most = max(1, self._pool.at_once // size)
        came = 0
        for first in range(0, len(lasts), most):
            piece = lasts[first : first + most]
            hits = self._load_entries(shared, load, piece, wanted)
            came = max(0, start + (first + hits) * size - wanted.start)
            if hits < len(piece):
                break
        return came

    def _load_entries(self, shared: SharedTier, load: BlockLoad, lasts: range, wanted: range) -> int:
        """Load the entries that end with the blocks ``lasts``; returns how many leading ones came. What they hold of
        blocks before ``wanted``, which are on the device already, goes nowhere."""
        size = shared.blocks_per_entry
        begin = lasts[0] + 1 - size
        first = max(begin, wanted.start)
        scratch = np.empty((first - begin, self._pool.block_bytes), dtype=np.uint8)
        with self._pool.landing(load.block_ids[first : lasts[-1] + 1]) as landing:
            buffers = [*scratch, *landing.buffers]
            entries = [
                Entry(load.content_keys[last], tuple(buffers[place * size : (place + 1) * size]))
                for place, last in enumerate(lasts)
            ]
            hits = _leading_hits(shared.load(entries, load.deadline))
            landing.land(max(0, begin + hits * size - first))
        return hits


def _leading_hits(outcomes: Items[LoadOutcome]) -> int:
    return next((i for i, outcome in enumerate(outcomes) if outcome is not LoadOutcome.HIT), len(outcomes))
