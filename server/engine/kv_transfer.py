"""Copies of KV between the device pool and the tiers below it.

Loads run on one I/O thread, beside the steps of other turns: the blocks that a load fills belong to a turn that waits
for it, so nobody reads them meanwhile. Copies out of the pool (an evicted block, a turn's new blocks) are made at once,
by the step's own thread: they are memory copies; what is slow about them happens behind the tiers' own queues.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Iterable
from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt
import torch

from ...sessions.cache.cost_model import CostModel, Source
from ...sessions.cache.lower_tiers import LowerTiers
from ...sessions.cache.tiers import Entry, LoadOutcome, Tier
from .kv_cache import KVCache
from .sequence import Sequence

logger = logging.getLogger(__name__)

LOAD_DEADLINE_FACTOR = 4.0  # times the predicted seconds of computing it: later than that it is computed
LEAST_DEADLINE_S = 0.25


@dataclasses.dataclass(frozen=True, slots=True)
class BlockLoad:
    """Fill ``block_ids`` with the blocks of ``content_keys``; ``sources`` says in which tiers they are, in order."""

    sequence: Sequence
    sources: list[Source]
    content_keys: list[bytes]
    block_ids: list[int]
    deadline: float  # on the clock of time.monotonic


@dataclasses.dataclass(frozen=True, slots=True)
class FinishedLoad:
    """What a load brought: ``loaded`` blocks of each tier, a prefix of what was wanted; in ``seconds`` a tier."""

    sequence: Sequence
    loaded: dict[Tier, int]
    seconds: dict[Tier, float]

    @property
    def num_blocks(self) -> int:
        return sum(self.loaded.values())


class KVTransfer:
    """Alone moves blocks between the pool and the lower tiers. The engine's step owns it; its thread only loads."""

    def __init__(self, kv_cache: KVCache, tiers: LowerTiers, cost: CostModel) -> None:
        pool = kv_cache.pool
        if pool.device.type != "cpu":
            raise ValueError("blocks of a GPU's pool need staging buffers")
        self._block_size = kv_cache.layout.block_size
        self._rows: npt.NDArray[np.uint8] = pool.view(pool.shape[0], -1).view(torch.uint8).numpy()
        self.tiers = tiers
        self.cost = cost
        self._wanted: queue.SimpleQueue[BlockLoad | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[FinishedLoad] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kv-load", daemon=True)
        self._thread.start()

    # -- the step's side ------------------------------------------------------------------------------------------

    def plan(self, num_device_blocks: int, content_keys: list[bytes], num_tokens: int) -> list[Source]:
        """What to load of the blocks after the first ``num_device_blocks`` of a prompt of ``num_tokens``: those that
        some tier has, as far as loading them is predicted to be faster than computing them."""
        found = self.tiers.sources(content_keys)
        if not found:
            return []
        sources = [Source(Tier.DEVICE, num_device_blocks), *found] if num_device_blocks else found
        worth = self.cost.plan_load(sources, num_tokens).num_blocks - num_device_blocks
        return _first_blocks(found, worth)

    def load_of(
        self, sequence: Sequence, sources: list[Source], content_keys: list[bytes], block_ids: list[int]
    ) -> BlockLoad:
        """The load of the first blocks of ``content_keys`` into ``block_ids``, with its deadline, counted from now: a
        load that waits too long behind others is late too."""
        count = sum(source.num_blocks for source in sources)
        compute_s = self.cost.prefill_s(count * self._block_size, 0)
        deadline = time.monotonic() + max(LEAST_DEADLINE_S, LOAD_DEADLINE_FACTOR * compute_s)
        return BlockLoad(sequence, sources, content_keys[:count], block_ids[:count], deadline)

    def start(self, loads: Iterable[BlockLoad]) -> None:
        """Begin to fill blocks, which nobody else may read or write from now on until their load has finished."""
        for load in loads:
            self._wanted.put(load)

    def finished(self) -> list[FinishedLoad]:
        """The loads that ended since the last call; the cost model has learnt from them."""
        ended: list[FinishedLoad] = []
        while not self._finished.empty():
            load = self._finished.get()
            for tier, blocks in load.loaded.items():
                self.cost.observe_load(tier, blocks * self._rows.shape[1], load.seconds[tier])
            ended.append(load)
        return ended

    def demote(self, content_key: bytes, block: int) -> None:
        """The tree is about to give up ``block``."""
        self.tiers.demote(content_key, self._rows[block])

    def persist(self, content_keys: Items[bytes], block_ids: Items[int]) -> None:
        """Write blocks behind, to where they outlive the process."""
        self.tiers.persist(content_keys, [self._rows[block] for block in block_ids])

    def close(self) -> None:
        """Finish the load in hand and let what was stored reach the disk."""
        self._wanted.put(None)
        self._thread.join()
        self.tiers.close()

    # -- the I/O thread's side ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (load := self._wanted.get()) is not None:
            self._finished.put(self._load(load))

    def _load(self, load: BlockLoad) -> FinishedLoad:
        loaded: dict[Tier, int] = {}
        seconds: dict[Tier, float] = {}
        first = 0
        for source in load.sources:
            started = time.monotonic()
            entries = [
                Entry(load.content_keys[i], (self._rows[load.block_ids[i]],))
                for i in range(first, first + source.num_blocks)
            ]
            hits = self._load_from(source.tier, entries, load.deadline)
            loaded[source.tier] = loaded.get(source.tier, 0) + hits
            seconds[source.tier] = seconds.get(source.tier, 0.0) + time.monotonic() - started
            if hits < source.num_blocks:
                break
            first += source.num_blocks
        return FinishedLoad(load.sequence, loaded, seconds)

    def _load_from(self, tier: Tier, entries: list[Entry], deadline: float) -> int:
        """How many leading ``entries`` were filled."""
        try:
            outcomes = self.tiers[tier].load(entries, deadline)
        except Exception:  # a tier that breaks its promise not to raise must not leave turns waiting for ever
            logger.exception("the %s tier raised, which it must not", tier)
            return 0
        return next((i for i, outcome in enumerate(outcomes) if outcome is not LoadOutcome.HIT), len(outcomes))


def _first_blocks(sources: list[Source], count: int) -> list[Source]:
    """The first ``count`` blocks of ``sources``."""
    kept: list[Source] = []
    for source in sources:
        if count <= 0:
            break
        kept.append(Source(source.tier, min(count, source.num_blocks)))
        count -= source.num_blocks
    return kept
