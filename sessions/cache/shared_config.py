"""The shared tier's part of the configuration, and how blocks are packed to objects."""

from __future__ import annotations

from typing import Any

import msgspec

MIB = 2**20


class SharedConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``adapter`` is the configuration of an LMCache L2 adapter, in its own words.

    Small blocks are packed to objects of up to ``object_bytes``. ``staging_bytes`` bounds the objects under way.
    ``patience_s``: a store that has not answered for so long has failed.
    """

    adapter: dict[str, Any]
    object_bytes: int = 2 * MIB
    staging_bytes: int = 64 * MIB
    patience_s: float = 1.0


def pack(block_bytes: int, object_bytes: int) -> int:
    """How many consecutive blocks make an object: the largest power of two that fits ``object_bytes``, at least 1."""
    return 1 << max(0, (object_bytes // block_bytes).bit_length() - 1) if block_bytes <= object_bytes else 1
