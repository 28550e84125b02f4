"""The disk tier: blocks in segment files, and an index log that says which block lies where.

    <disk path>/
        LOCK                    held with flock by the one server that uses the folder
        <fingerprint>/          one folder a model: blocks of another fingerprint are never looked at
            index.log           header, then one record a change (``index_log``)
            segment-00000.kv    slots of one size, one after the other; nothing else in between (``segments``)
            segment-00001.kv

Nothing is trusted that a crash may have left half done: each record and the header carry a checksum, each record holds
the checksum of its block's bytes, and a block whose bytes do not match is a miss. So the order in which the kernel
writes pages back does not matter, and no write waits for the disk (``docs/decisions``: the disk tier's format).
"""

from .config import DiskConfig
from .disk_tier import DiskTier

__all__ = ["DiskConfig", "DiskTier"]
