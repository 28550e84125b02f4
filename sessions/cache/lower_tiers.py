"""The tiers below the device tier, as one: where a path's blocks are, and where a block goes when it must leave.

    device pool ── evicted ──> HOST ── evicted ──> DISK            (demote before dropping)
    device pool ── end of a turn ─────────────────> DISK            (persist: what survives a restart)

Both are caches under content keys: a block may be in several tiers at once, and none of them is ever asked for
correctness.
"""

from __future__ import annotations

from collections.abc import Sequence

from .cost_model import Source
from .disk.disk_tier import DiskTier
from .host_tier import HostTier, Slab
from .tiers import Block, Entry, LowerTier, Tier, TierStats


class LowerTiers:
    """HOST and DISK, either of which may be missing. ``sources``, ``demote`` and ``persist`` never wait."""

    def __init__(self, host_slab: Slab | None, disk: DiskTier | None) -> None:
        self._disk = disk
        self._host = None if host_slab is None else HostTier(host_slab, on_evict=self._leave_host)
        self._tiers: dict[Tier, LowerTier] = {}
        if self._host is not None:
            self._tiers[Tier.HOST] = self._host
        if disk is not None:
            self._tiers[Tier.DISK] = disk

    def __getitem__(self, tier: Tier) -> LowerTier:
        return self._tiers[tier]

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Those that there are, the fastest first."""
        return tuple(self._tiers)

    def sources(self, content_keys: Sequence[bytes]) -> list[Source]:
        """Where the leading blocks of a path are, each in the fastest tier that has it; ends at the first that is in
        none."""
        present = {tier: lower.contains(content_keys) for tier, lower in self._tiers.items()}
        runs: list[Source] = []
        for index in range(len(content_keys)):
            tier = next((tier for tier in self._tiers if present[tier][index]), None)
            if tier is None:
                break
            if runs and runs[-1].tier is tier:
                runs[-1] = Source(tier, runs[-1].num_blocks + 1)
            else:
                runs.append(Source(tier, 1))
        return runs

    def demote(self, content_key: bytes, block: Block) -> None:
        """Keep a block that leaves the device pool. A full or failing tier drops it, and counts that."""
        lower = next(iter(self._tiers.values()), None)
        if lower is not None:
            lower.store([Entry(content_key, (block,))])

    def persist(self, content_keys: Sequence[bytes], blocks: Sequence[Block]) -> None:
        """Keep blocks where they outlive the process."""
        if self._disk is not None:
            self._disk.store([Entry(key, (block,)) for key, block in zip(content_keys, blocks, strict=True)])

    def stats(self) -> dict[Tier, TierStats]:
        return {tier: lower.stats() for tier, lower in self._tiers.items()}

    def close(self) -> None:
        """Let all that was taken reach the disk, then give everything up."""
        for lower in self._tiers.values():
            lower.close()

    def _leave_host(self, entry: Entry) -> None:
        if self._disk is not None:
            self._disk.store([entry])
