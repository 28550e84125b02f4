"""Where the KV of a path is, tier by tier."""

from __future__ import annotations

from ...sessions.cache.prefix_cache import PrefixCache
from ...sessions.cache.tiers import LowerTier
from ...sessions.cache.token_key import TOKEN_BYTES
from .kv_transfer import KVTransfer


class PathLookup:
    """Asks; changes nothing. ``transfer`` None: there are no tiers below the device's."""

    def __init__(self, cache: PrefixCache, transfer: KVTransfer | None) -> None:
        self._cache = cache
        self._transfer = transfer

    def tokens_on_device(self, salt: str, key: bytes) -> int:
        """How many leading tokens of a path the device has, whoever uses them."""
        match = self._cache.match(salt, key)
        return len(match.blocks) * self._cache.block_size + match.partial_tokens

    def tokens_below(self, salt: str, key: bytes) -> dict[str, int]:
        """How many leading tokens of a path each local tier below the device has, by its name."""
        if self._transfer is None:
            return {}
        tiers, keys = self._transfer.tiers, self._cache.content_keys(salt, key)
        return {tier.value: self._tokens_in(tiers[tier], salt, key, keys) for tier in tiers.local}

    def blocks_behind(self, salt: str, key: bytes, num_blocks: int) -> tuple[list[bytes], int]:
        """The content keys of the blocks after the first ``num_blocks`` that local tiers have without a gap, a
        half-full last one included, and how many tokens these are."""
        if self._transfer is None:
            return [], 0
        tiers, keys = self._transfer.tiers, self._cache.content_keys(salt, key)
        count = num_blocks + sum(source.num_blocks for source in tiers.sources(keys[num_blocks:]))
        found, num_tokens = keys[num_blocks:count], (count - num_blocks) * self._cache.block_size
        for tail in self._cache.tail_keys(salt, keys[count - 1] if count else None, self._rest(key, count)):
            if tiers.holder(tail.content_key) is not None:
                return [*found, tail.content_key], num_tokens + tail.num_tokens
        return found, num_tokens

    def _tokens_in(self, lower: LowerTier, salt: str, key: bytes, keys: list[bytes]) -> int:
        present = lower.contains(keys)
        count = next((i for i, there in enumerate(present) if not there), len(present))
        tails = self._cache.tail_keys(salt, keys[count - 1] if count else None, self._rest(key, count))
        there = lower.contains([tail.content_key for tail in tails])
        tail_tokens = next((tail.num_tokens for tail, found in zip(tails, there, strict=True) if found), 0)
        return count * self._cache.block_size + tail_tokens

    def _rest(self, key: bytes, num_blocks: int) -> bytes:
        """The tokens of the block after the first ``num_blocks``."""
        size = self._cache.block_size * TOKEN_BYTES
        return key[num_blocks * size : (num_blocks + 1) * size]
