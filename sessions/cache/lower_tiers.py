"""The tiers below the device tier, as one: where a path's blocks are, and where a block goes when it must leave.

    device pool ── evicted ──> HOST ── evicted ──> DISK            (demote before dropping)
    device pool ── end of a turn ─────────────────> DISK            (persist: what survives a restart)
                                 └────────────────> SHARED          (what other servers find)

All are caches under content keys: a block may be in several tiers at once, and none of them is ever asked for
correctness.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from .cost_model import Source
from .disk.disk_tier import DiskTier
from .host_tier import HostTier, Slab
from .lifetime import Lifetime
from .shared_tier import SharedTier
from .tenant_quota import TenantQuota
from .tiers import Block, Entry, LoadOutcome, LowerTier, Tier, TierStats

_PERSIST_AT_ONCE = 32  # blocks given to the disk's write queue, which is then waited for if it is full
_LOAD_ONE_S = 5.0  # where nobody waits for it but an export
_FLUSH_S = 30.0  # for the disk to write what its queue holds
LEAST_REUSE = 0.05  # what is never demoted is never seen to come back: some is tried always
SHARED_AT_ONCE = 16  # entries given to the shared tier at the end of a turn; the rest follows with later turns


class LowerTiers:
    """HOST, DISK and SHARED, any of which may be missing. No method but ``close`` waits."""

    def __init__(
        self,
        host_slab: Slab | None,
        disk: DiskTier | None,
        shared: SharedTier | None = None,
        host_quota: TenantQuota[str] | None = None,
    ) -> None:
        self.disk = disk
        self._host = None if host_slab is None else HostTier(host_slab, self._leave_host, host_quota)
        self.shared = shared
        self._local: dict[Tier, LowerTier] = {}
        self._hanging: dict[Tier, int] = {}  # reads that do not come back
        if self._host is not None:
            self._local[Tier.HOST] = self._host
        if disk is not None:
            self._local[Tier.DISK] = disk

    def __getitem__(self, tier: Tier) -> LowerTier:
        """The local tier of that kind."""
        return self._local[tier]

    @property
    def local(self) -> tuple[Tier, ...]:
        """Those of this machine that there are, the fastest first. What they have is known at once."""
        return tuple(self._local)

    def forget_counts(self) -> None:
        """What the local tiers were measured with is no use of them."""
        for tier in self._local.values():
            tier.forget_counts()

    @property
    def first_local(self) -> Tier | None:
        """Where a block goes that leaves the device; None: nowhere."""
        return next(iter(self._local), None)

    @property
    def reuse_probability(self) -> float:
        """How much of what was demoted is asked for again, by what was seen so far; it begins at a half."""
        first = self.first_local
        if first is None:
            return 0.0
        stats = self._local[first].stats()
        return max(LEAST_REUSE, (stats.hits + 100) / (stats.stored + 200))

    def sources(self, content_keys: Sequence[bytes]) -> list[Source]:
        """Where the leading blocks of a path are, each in the fastest local tier that has it; ends at the first that is
        in none."""
        present = {tier: lower.contains(content_keys) for tier, lower in self._answering()}
        runs: list[Source] = []
        for index in range(len(content_keys)):
            tier = next((tier for tier in present if present[tier][index]), None)
            if tier is None:
                break
            if runs and runs[-1].tier is tier:
                runs[-1] = Source(tier, runs[-1].num_blocks + 1)
            else:
                runs.append(Source(tier, 1))
        return runs

    def asked_for_cached(self, sources: Sequence[Source], content_keys: Sequence[bytes]) -> list[Source]:
        """``sources``, the runs of a path's first blocks, and how much of those on the disk is in the page cache."""
        asked: list[Source] = []
        start = 0
        for source in sources:
            keys = content_keys[start : start + source.num_blocks]
            cached = self.disk.share_in_page_cache(keys) if source.tier is Tier.DISK and self.disk is not None else 0.0
            asked.append(Source(source.tier, source.num_blocks, cached))
            start += source.num_blocks
        return asked

    def leading(self, content_keys: Sequence[bytes]) -> dict[Tier, int]:
        """How many leading blocks of a path each local tier has by itself."""
        counts: dict[Tier, int] = {}
        for tier, lower in self._local.items():
            present = lower.contains(content_keys)
            counts[tier] = next((i for i, there in enumerate(present) if not there), len(present))
        return counts

    def holder(self, content_key: bytes) -> Tier | None:
        """The fastest local tier that has a block; None: none does."""
        return next((tier for tier, lower in self._answering() if lower.contains([content_key])[0]), None)

    def load(self, content_key: bytes, block: Block) -> bool:
        """Fill ``block`` from the fastest local tier that has it; False: none gives it. For an I/O thread."""
        deadline = time.monotonic() + _LOAD_ONE_S
        return any(
            lower.contains([content_key])[0]
            and lower.load([Entry(content_key, (block,))], deadline)[0] is LoadOutcome.HIT
            for _, lower in self._answering()
        )

    def hangs(self, tier: Tier) -> None:
        """A read from ``tier`` does not come back: nothing is looked for there until it does."""
        self._hanging[tier] = self._hanging.get(tier, 0) + 1

    def answers_again(self, tier: Tier) -> None:
        """A read of which ``hangs`` was said came back."""
        self._hanging[tier] -= 1
        if not self._hanging[tier]:
            del self._hanging[tier]

    def first_for(self, lifetime: Lifetime) -> Tier | None:
        """Where a block goes that leaves the device and may go so far; None: nowhere."""
        first = self.first_local
        return first if lifetime is Lifetime.DURABLE or first is Tier.HOST else None

    def demote(self, content_key: bytes, block: Block, tenant: str = "", lifetime: Lifetime = Lifetime.DURABLE) -> None:
        """Keep a block that leaves the device pool. A full or failing tier drops it, and counts that."""
        tier = self.first_for(lifetime)
        if tier is not None:
            self._local[tier].store([Entry(content_key, (block,), tenant, lifetime)])

    def persist(self, content_keys: Sequence[bytes], blocks: Sequence[Block], first: int, tenant: str = "") -> None:
        """Keep a path's ``blocks`` from ``first`` on where they outlive the process, and all where others find them."""
        if self.disk is not None:
            new = zip(content_keys[first:], blocks[first:], strict=True)
            self.disk.store([Entry(key, (block,), tenant) for key, block in new])
        if self.shared is not None and self.shared.is_usable:
            self._share(self.shared, content_keys, blocks)

    def first_to_persist(self, content_keys: Sequence[bytes], first: int) -> int:
        """From which block on ``persist`` would read the bytes of a path whose blocks from ``first`` on are new: the
        beginning of an entry of the shared tier, if that lacks any; the path's end, if nothing outlives the process."""
        new = len(content_keys) if self.disk is None else first
        if self.shared is None or not self.shared.is_usable:
            return new
        size = self.shared.blocks_per_entry
        lasts = range(size - 1, len(content_keys), size)
        lacking = next((last + 1 - size for last in lasts if not self.shared.knows(content_keys[last])), new)
        return min(new, lacking) // size * size

    def persist_tail(self, content_key: bytes, block: Block, tenant: str = "") -> None:
        """Keep the half-full block at a path's end where it outlives the process."""
        if self.disk is not None:
            self.disk.store([Entry(content_key, (block,), tenant)])

    def keep_all(
        self,
        content_keys: Sequence[bytes],
        blocks: Sequence[Block],
        tenant: str = "",
        lifetime: Lifetime = Lifetime.DURABLE,
    ) -> None:
        """Keep copies of a whole path in host memory, if there is any, and ``persist`` it, waiting for the disk where
        need be, unless it must not outlive the process. Waits: for an I/O thread. What a failing disk does not take is
        lost, and counted."""
        durable = lifetime is Lifetime.DURABLE
        for start in range(0, len(blocks), _PERSIST_AT_ONCE):
            part = slice(start, start + _PERSIST_AT_ONCE)
            named = zip(content_keys[part], blocks[part], strict=True)
            entries = [Entry(key, (block,), tenant, lifetime) for key, block in named]
            if self._host is not None:
                self._host.store(entries)
            if durable and self.disk is not None and not all(self.disk.store(entries)):
                if not self.disk.flush(_FLUSH_S):
                    break  # a disk that hangs; what it has not is computed again
                self.disk.store(entries)
        if not durable:
            return
        if self.disk is not None:
            self.disk.flush(_FLUSH_S)
        if self.shared is not None and self.shared.is_usable:
            self._share(self.shared, content_keys, blocks)

    def stats(self) -> dict[Tier, TierStats]:
        lower = {tier: lower.stats() for tier, lower in self._local.items()}
        for tier in self._hanging:
            if tier in lower:
                lower[tier] = dataclasses.replace(lower[tier], unavailable="a read does not come back")
        return lower if self.shared is None else {**lower, Tier.SHARED: self.shared.stats()}

    def close(self) -> None:
        """Let all that was taken reach the disk, then give everything up."""
        for _, lower in self._answering():  # closing one that hangs would hang too; the system ends what it holds
            lower.close()
        if self.shared is not None:
            self.shared.close()

    def _answering(self) -> list[tuple[Tier, LowerTier]]:
        return [(tier, lower) for tier, lower in self._local.items() if tier not in self._hanging]

    def _share(self, shared: SharedTier, content_keys: Sequence[bytes], blocks: Sequence[Block]) -> None:
        """Give the shared tier whole entries of the path that it was not seen to have, the first ones first."""
        size = shared.blocks_per_entry
        entries: list[Entry] = []
        for last in range(size - 1, len(content_keys), size):
            if not shared.knows(content_keys[last]):
                entries.append(Entry(content_keys[last], tuple(blocks[last + 1 - size : last + 1])))
                if len(entries) == SHARED_AT_ONCE:
                    break
        shared.store(entries)

    def _leave_host(self, entry: Entry) -> None:
        if self.disk is not None and entry.lifetime is Lifetime.DURABLE:
            self.disk.store([entry])
