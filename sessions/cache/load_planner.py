"""What to load from where for a path whose first blocks are on the device.

Lower tiers are found by content key, so nothing needs to remember which of them holds what: the tree knows the device
tier alone. Of the tiers that have a block the fastest is taken; how far loading pays is the cost model's choice.

    block     0   1   2   3   4   5   6   7   8   9
    has it    D   D   D   H   H   K   S   S   S   -         device, host, disk, shared (entries of two blocks)
    load                  H   H   K ( S   S )               block 8's entry is not whole: it ends here
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from .cost_model import CostModel, LoadPlan, Source
from .tiers import LowerTier, Tier


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedEntry:
    """Load ``num_blocks`` blocks of the path, from ``first_block`` on, which lie under ``key``.

    ``wanted`` are those that are taken from here. The others of an entry of several blocks are there already or come
    from a faster tier: they go to scratch memory.
    """

    key: bytes
    first_block: int
    num_blocks: int
    wanted: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Moves:
    """What to load, per tier, and how many blocks of the path there are when all of it came."""

    loads: Mapping[Tier, tuple[PlannedEntry, ...]]
    num_blocks: int
    predicted: LoadPlan

    def num_usable(self, arrived: set[tuple[Tier, bytes]], num_on_device: int) -> int:
        """How many leading blocks there are if only the entries in ``arrived`` came: partial loads are used."""
        present = set(range(num_on_device))
        for tier, entries in self.loads.items():
            for entry in entries:
                if (tier, entry.key) in arrived:
                    present.update(entry.wanted)
        return next(i for i in itertools.count() if i not in present)


class LoadPlanner:
    """Asks the tiers, then the cost model. Changes nothing but the cost model's counts."""

    def __init__(self, tiers: Sequence[LowerTier], cost: CostModel) -> None:
        """``tiers``: the fastest first."""
        self._tiers = tuple(tiers)
        self._cost = cost

    def plan(
        self,
        keys: Sequence[bytes],
        num_on_device: int,
        num_tokens: int,
        looked_up: Mapping[Tier, Sequence[bool]] | None = None,
    ) -> Moves:
        """The moves for a prompt of ``num_tokens`` whose whole blocks have ``keys``, the first ones on the device.

        ``looked_up``: of tiers that do not answer at once, which entries of the path they have (``entry_keys``); such
        a tier without an answer has nothing.
        """
        found = self._found(keys, num_on_device, looked_up or {})
        runs = [Source(tier, len(list(run))) for tier, run in itertools.groupby(found)]
        device = [Source(Tier.DEVICE, num_on_device)] if num_on_device else []
        predicted = self._cost.plan_load([*device, *runs], num_tokens)
        stop = self._end_of_entry(found, num_on_device, predicted.num_blocks)
        return Moves(self._loads(found[: stop - num_on_device], keys, num_on_device), stop, predicted)

    def entry_keys(self, tier: LowerTier, keys: Sequence[bytes]) -> list[bytes]:
        """The keys under which ``tier`` would have the entries of a path whose blocks have ``keys``."""
        return list(keys[tier.blocks_per_entry - 1 :: tier.blocks_per_entry])

    def _found(self, keys: Sequence[bytes], num_on_device: int, looked_up: Mapping[Tier, Sequence[bool]]) -> list[Tier]:
        """The fastest tier that has each block after the device's, up to the first that none has."""
        per_tier: list[tuple[LowerTier, Sequence[bool]]] = []
        for tier in self._tiers:
            present: Sequence[bool] = looked_up.get(tier.tier, ())
            if tier.answers_at_once:
                present = tier.contains(self.entry_keys(tier, keys))
            per_tier.append((tier, present))
        found: list[Tier] = []
        for block in range(num_on_device, len(keys)):
            having = next((tier.tier for tier, present in per_tier if _has(present, block, tier)), None)
            if having is None:
                break
            found.append(having)
        return found

    def _end_of_entry(self, found: Sequence[Tier], num_on_device: int, stop: int) -> int:
        """``stop``, moved on to the end of an entry of several blocks that is loaded anyway."""
        while num_on_device < stop < num_on_device + len(found):
            tier = found[stop - 1 - num_on_device]
            if stop % self._tier(tier).blocks_per_entry == 0 or found[stop - num_on_device] is not tier:
                break
            stop += 1
        return stop

    def _loads(
        self, found: Sequence[Tier], keys: Sequence[bytes], num_on_device: int
    ) -> dict[Tier, tuple[PlannedEntry, ...]]:
        wanted: dict[Tier, dict[int, list[int]]] = {}  # tier -> first block of an entry -> blocks taken from it
        for block, tier in enumerate(found, num_on_device):
            first = block - block % self._tier(tier).blocks_per_entry
            wanted.setdefault(tier, {}).setdefault(first, []).append(block)
        loads: dict[Tier, tuple[PlannedEntry, ...]] = {}
        for tier, entries in wanted.items():
            size = self._tier(tier).blocks_per_entry
            loads[tier] = tuple(
                PlannedEntry(keys[first + size - 1], first, size, tuple(blocks)) for first, blocks in entries.items()
            )
        return loads

    def _tier(self, kind: Tier) -> LowerTier:
        return next(tier for tier in self._tiers if tier.tier is kind)


def _has(present: Sequence[bool], block: int, tier: LowerTier) -> bool:
    entry = block // tier.blocks_per_entry
    return entry < len(present) and present[entry]
