"""Block keys of no model in particular."""

from __future__ import annotations

from sessile.sessions.cache.keys import BlockKeys, KVFingerprint


def block_keys(block_size: int, block_bytes: int = 64) -> BlockKeys:
    return BlockKeys(
        KVFingerprint(
            weights="none",
            dtype="float32",
            layout="plain",
            block_size=block_size,
            block_bytes=block_bytes,
            rope="none",
        )
    )
