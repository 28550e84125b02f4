"""The 64 bytes behind an object's payload in a shared store, which say what it is and whether it is whole.

    8s magic, u32 version, u32 blocks in the object, u64 payload bytes, 32s key, u64 xxh3 of payload and all of these

A store that returns another object, an older one, a part or a flipped bit is found out here.
"""

from __future__ import annotations

import struct

from xxhash import xxh3_64, xxh3_64_intdigest

from .tiers import Block

TRAILER_BYTES = 64

_FIELDS = struct.Struct("<8sIIQ32s")
_MAGIC = b"SESSILOB"
_VERSION = 1


def seal(slot: Block, key: bytes, num_blocks: int) -> None:
    """Write the trailer of the payload that fills ``slot`` up to its last 64 bytes."""
    payload = len(slot) - TRAILER_BYTES
    fields = _FIELDS.pack(_MAGIC, _VERSION, num_blocks, payload, key)
    checksum = _checksum(slot, fields)
    slot[payload:].data[:] = fields + checksum.to_bytes(8, "little")


def is_sealed(slot: Block, key: bytes, num_blocks: int) -> bool:
    """Whether ``slot`` holds what ``seal`` left there for ``key``, every bit of it."""
    payload = len(slot) - TRAILER_BYTES
    fields = _FIELDS.pack(_MAGIC, _VERSION, num_blocks, payload, key)
    return bytes(slot[payload:].data) == fields + _checksum(slot, fields).to_bytes(8, "little")


def _checksum(slot: Block, fields: bytes) -> int:
    return xxh3_64_intdigest(slot[: len(slot) - TRAILER_BYTES].data, seed=xxh3_64(fields).intdigest())
