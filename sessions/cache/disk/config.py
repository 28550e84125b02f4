"""The disk tier's part of the configuration."""

from __future__ import annotations

import msgspec

from ...errors import ConfigError

MIB = 2**20


class DiskConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the disk tier lies and what it may use.

    ``quota_bytes`` bounds the blocks of all models in ``path`` together. ``write_queue_bytes`` is the memory for blocks
    that wait to be written; when it is full, further blocks are not stored. ``num_readers`` is how many reads are in
    flight at once. ``segment_bytes`` is the size of one segment file; a folder keeps the size that it was made with.
    ``tenant_quota_bytes`` is what a tenant may have before its own blocks go first; 0: all.
    """

    path: str
    quota_bytes: int
    write_queue_bytes: int = 128 * MIB
    num_readers: int = 4
    segment_bytes: int = 1024 * MIB
    tenant_quota_bytes: int = 0

    def validate(self, block_bytes: int) -> None:
        """Raise ConfigError naming the first key that is out of range."""
        if not self.path:
            raise ConfigError("engine.disk_path is empty", field="engine.disk_path", remedy="name a folder")
        at_least = {"quota_bytes": block_bytes, "write_queue_bytes": block_bytes, "num_readers": 1, "segment_bytes": 1}
        for key, least in at_least.items():
            if getattr(self, key) < least:
                raise ConfigError(
                    f"engine.disk_{key} is {getattr(self, key)}",
                    field=f"engine.disk_{key}",
                    remedy=f"it must be {least} or more",
                )
