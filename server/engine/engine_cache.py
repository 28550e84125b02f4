"""The cache, put together: pool, tree, what sessions ask to be kept, the tiers below, and what happens in them."""

from __future__ import annotations

from collections.abc import Callable

from ...sessions.cache.block_pool import BlockPool
from ...sessions.cache.cost_model import CostModel
from ...sessions.cache.eviction import ExpectedValue
from ...sessions.cache.keys import BlockKeys
from ...sessions.cache.path_ends import PathEnds
from ...sessions.cache.prefix_cache import PrefixCache
from ...sessions.cache.radix_node import Evicted
from ...sessions.cache.radix_tree import RadixTree
from ...sessions.cache.recent_keys import RecentKeys
from ...sessions.cache.tiers import Tier
from ..model.causal_lm import CausalLM
from .block_loads import FinishedLoad
from .cache_events import CacheEventLog
from .cache_messages import CacheEventKind, CacheEvents
from .device.parts import DeviceParts
from .engine_config import EngineConfig
from .kv_cache import arithmetic_of, kv_fingerprint
from .kv_transfer import KVTransfer
from .lower_tiers import TierSetup
from .messages import CacheStats
from .path_files import PathFiles
from .path_lookup import PathLookup

_REMEMBER_EXPIRED_S = 86_400.0  # whose time was over, for whoever asks why their KV is gone
_MOST_EXPIRED = 4096


class EngineCache:
    """Owns all parts of the cache. ``tiers`` None: there are none below the device's; ``transfer`` is None then."""

    def __init__(
        self,
        config: EngineConfig,
        parts: DeviceParts,
        model: CausalLM,
        weights: str,
        tiers: TierSetup | None,
        clock: Callable[[], float],
    ) -> None:
        self.block_size = config.block_size
        self._tiers = tiers
        self._blocks = parts.blocks
        kv_cache = parts.kv_cache
        fingerprint = kv_fingerprint(kv_cache.layout, weights, arithmetic_of(kv_cache.pool.device))
        self.transfer: KVTransfer | None = None
        if tiers is not None:
            lower = tiers.open(fingerprint)
            calibration = tiers.calibrate(model, kv_cache, lower)
            lower.forget_counts()
            cost = CostModel(calibration, config.block_size, fingerprint.block_bytes)
            self.transfer = KVTransfer(parts.blocks, config.block_size, lower, cost, self._loaded)
        self.pool = BlockPool(kv_cache.num_blocks)
        block_bytes = fingerprint.block_bytes
        quota = config.tenant_kv_bytes // block_bytes if config.tenant_kv_bytes else None
        tenant_pins = config.tenant_pinned_bytes // block_bytes if config.tenant_pinned_bytes else None
        policy = ExpectedValue(self._bring_back_s)
        self.tree = RadixTree(self.pool, config.block_size, policy, self._on_evict, clock, quota)
        self.ends = PathEnds(self.tree, clock, int(config.pin_budget * kv_cache.num_blocks), tenant_pins)
        self.prefixes = PrefixCache(self.pool, self.tree, BlockKeys(fingerprint), self.ends, self._stored)
        self.lookup = PathLookup(self.prefixes, self.transfer)
        self.files = PathFiles(self.prefixes, self.lookup, fingerprint, parts.blocks, self.transfer)
        self.events = CacheEventLog()
        self.expired_owners = RecentKeys(_REMEMBER_EXPIRED_S, _MOST_EXPIRED, clock)

    def tend(self) -> bool:
        """What time alone does to the cache. Returns whether blocks may have become available by it."""
        expired = self.ends.expire()
        if expired:
            self.events.note(CacheEventKind.EXPIRED, Tier.DEVICE, 0, expired)
            for owner in expired:
                self.expired_owners.note(owner.encode())
        broken = self.ends.take_broken()
        if broken:
            self.events.note(CacheEventKind.UNPINNED, Tier.DEVICE, 0, broken)
        return bool(expired)

    def take_events(self) -> CacheEvents | None:
        """What happened since the last time; None: nothing."""
        return None if self.events.is_empty else self.events.take()

    def stats(self) -> CacheStats:
        """Of eviction, pins and what the cost model decided."""
        decisions = None if self.transfer is None else self.transfer.cost.decisions

        def by_tier(counts: dict[Tier, int]) -> dict[str, int]:
            return {tier.value: count for tier, count in counts.items()}

        return CacheStats(
            evicted_blocks=self.tree.num_evicted,
            superseded_blocks_evicted=self.tree.num_superseded_evicted,
            over_quota_blocks_evicted=self.tree.num_over_quota_evicted,
            pinned_blocks=self.tree.num_pinned_blocks,
            pin_budget_blocks=self.ends.budget_blocks,
            pins=self.ends.num_pins,
            broken_pins=self.ends.num_broken_pins,
            tenant_limited_pins=self.ends.num_over_tenant_budget,
            loaded_blocks={} if decisions is None else by_tier(decisions.loaded),
            recomputed_blocks={} if decisions is None else by_tier(decisions.recomputed),
            demoted_blocks={} if decisions is None else by_tier(decisions.demoted),
            not_demoted_blocks={} if decisions is None else by_tier(decisions.not_demoted),
            prefill_error=1.0 if self.transfer is None else self.transfer.cost.prefill_accuracy.typical_factor,
        )

    def close(self) -> None:
        """Let what the lower tiers took reach the disk, and keep what was learnt of their speed."""
        if self.transfer is not None and self._tiers is not None:
            self._tiers.keep(self.transfer.cost.calibration())
            self.transfer.close()
        else:
            self._blocks.close()

    # -- what the parts tell --------------------------------------------------------------------------------------

    def _on_evict(self, evicted: Evicted) -> None:
        demoted_to = None if self.transfer is None else self.transfer.demote(evicted)
        kind = CacheEventKind.EVICTED if demoted_to is None else CacheEventKind.DEMOTED
        self.events.note(kind, demoted_to or Tier.DEVICE, evicted.num_tokens, evicted.owners, evicted.content_keys[-1])

    def _bring_back_s(self, start: int) -> float:
        return 1.0 if self.transfer is None else self.transfer.bring_back_s(start)

    def _stored(self, owner: str, num_tokens: int, content_key: bytes) -> None:
        self.events.note(CacheEventKind.STORED, Tier.DEVICE, num_tokens, [owner], content_key)

    def _loaded(self, load: FinishedLoad) -> None:
        for tier, tokens in load.tokens.items():
            if tokens:
                self.events.note(CacheEventKind.LOADED, tier, tokens, [load.sequence.turn.owner])
