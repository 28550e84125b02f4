"""Opens the tiers that the configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from ...sessions.cache.cost_model import Calibration
from ...sessions.cache.disk.config import DiskConfig
from ...sessions.cache.disk.disk_tier import DiskTier
from ...sessions.cache.host_tier import allocate_slab
from ...sessions.cache.keys import KVFingerprint
from ...sessions.cache.lmcache_tier import lmcache_store
from ...sessions.cache.lower_tiers import LowerTiers
from ...sessions.cache.shared_config import SharedConfig
from ...sessions.cache.shared_tier import SharedTier
from ...sessions.cache.tenant_quota import TenantQuota
from ...sessions.errors import ConfigError
from ..model.causal_lm import CausalLM
from .calibration import measure
from .engine_config import EngineConfig
from .kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class TierSetup:
    """How the tiers below the pool are made, once the pool is there, what their cost model starts from, and who keeps
    what it knew in the end."""

    open: Callable[[KVFingerprint], LowerTiers]
    calibrate: Callable[[CausalLM, KVCache, LowerTiers], Calibration] = measure
    keep: Callable[[Calibration], None] = lambda calibration: None


def wants_lower_tiers(config: EngineConfig) -> bool:
    """Whether there is any tier below the device's."""
    on_disk = config.disk_quota_bytes and config.disk_path
    return bool(config.host_memory_bytes or on_disk or config.shared)


def open_lower_tiers(config: EngineConfig, fingerprint: KVFingerprint) -> LowerTiers:
    """The host, the disk and the shared tier for blocks of ``fingerprint``.

    Raises:
        ConfigError: the memory is not there, the folder cannot be used or is another server's, or the shared tier's
            adapter is refused. A store that does not answer is no error: the tier connects when it does.
    """
    slab = allocate_slab(config.host_memory_bytes, fingerprint.block_bytes) if config.host_memory_bytes else None
    shared = _open_shared(config.shared, fingerprint) if config.shared else None
    disk = None
    if config.disk_quota_bytes and config.disk_path:
        disk_config = DiskConfig(
            path=config.disk_path, quota_bytes=config.disk_quota_bytes, tenant_quota_bytes=config.tenant_disk_bytes
        )
        disk = DiskTier(disk_config, fingerprint)
    most = config.tenant_host_bytes // fingerprint.block_bytes if config.tenant_host_bytes else None
    return LowerTiers(slab, disk, shared, TenantQuota(most))


def _open_shared(text: str, fingerprint: KVFingerprint) -> SharedTier:
    try:
        spec = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(
            f"engine.shared is not a JSON object: {error}",
            field="engine.shared",
            remedy='write it like {"type": "valkey", "startup_nodes": "localhost:6379"}',
        ) from error
    shared = SharedConfig(adapter=spec)
    namespace = f"sessile-{fingerprint.digest().hex()[:32]}"
    return SharedTier(lmcache_store(spec, namespace, shared.patience_s), shared, fingerprint.block_bytes)
