"""Opens the tiers that the configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...sessions.cache.cost_model import Calibration
from ...sessions.cache.disk.config import DiskConfig
from ...sessions.cache.disk.disk_tier import DiskTier
from ...sessions.cache.host_tier import allocate_slab
from ...sessions.cache.keys import KVFingerprint
from ...sessions.cache.lower_tiers import LowerTiers
from ..model.causal_lm import CausalLM
from .calibration import measure
from .engine_config import EngineConfig
from .kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class TierSetup:
    """How the tiers below the pool are made, once the pool is there, and what their cost model starts from."""

    open: Callable[[KVFingerprint], LowerTiers]
    calibrate: Callable[[CausalLM, KVCache, LowerTiers], Calibration] = measure


def wants_lower_tiers(config: EngineConfig, device_type: str) -> bool:
    """Whether there is any tier below the device's. A GPU's pool needs staging buffers, which do not exist yet."""
    return device_type == "cpu" and bool(config.host_memory_bytes or (config.disk_quota_bytes and config.disk_path))


def open_lower_tiers(config: EngineConfig, fingerprint: KVFingerprint) -> LowerTiers:
    """The host and the disk tier for blocks of ``fingerprint``.

    Raises:
        ConfigError: the memory is not there, or the folder cannot be used or is another server's.
    """
    slab = allocate_slab(config.host_memory_bytes, fingerprint.block_bytes) if config.host_memory_bytes else None
    disk = None
    if config.disk_quota_bytes and config.disk_path:
        disk = DiskTier(DiskConfig(path=config.disk_path, quota_bytes=config.disk_quota_bytes), fingerprint)
    return LowerTiers(slab, disk)
