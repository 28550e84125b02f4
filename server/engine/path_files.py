"""Exports and imports of a path's KV: work for the thread beside the step, and what is to be done before and after."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from ...sessions.cache.keys import KVFingerprint
from ...sessions.cache.prefix_cache import CachedPath, PrefixCache
from ...sessions.cache.tiers import Block, Tier
from ...sessions.cache.token_key import TOKEN_BYTES, pack_tokens
from ...sessions.errors import CapacityError
from .cache_messages import CacheResponse, ExportOutcome, ExportPath, ImportOutcome, ImportPath
from .kv_file import KVBlock, path_keys, read_kv_file, write_kv_file
from .kv_transfer import KVTransfer
from .path_jobs import PathJob
from .path_lookup import PathLookup
from .pool_blocks import PoolBlocks, write_blocks

_AT_ONCE = 32  # blocks of a file in memory


class PathFiles:
    """``transfer`` None: there are no tiers below the device's."""

    def __init__(
        self,
        cache: PrefixCache,
        lookup: PathLookup,
        fingerprint: KVFingerprint,
        pool: PoolBlocks,
        transfer: KVTransfer | None,
    ) -> None:
        self._cache = cache
        self._lookup = lookup
        self._fingerprint = fingerprint
        self._pool = pool
        self._transfer = transfer

    def export(self, call_id: int, path: ExportPath) -> PathJob:
        """The job that writes what the tiers have of a path."""
        key = pack_tokens(path.token_ids)
        cached = self._cache.hold(path.cache_salt, key)
        size = self._fingerprint.block_size
        whole = cached.num_tokens // size
        behind, num_tokens = self._lookup.blocks_behind(path.cache_salt, key, whole)
        if whole * size + num_tokens > cached.num_tokens:
            blocks, num_tokens = cached.blocks[:whole], whole * size + num_tokens
        else:
            blocks, behind, num_tokens = cached.blocks, [], cached.num_tokens
        work = partial(self._export, Path(path.file), key[: num_tokens * TOKEN_BYTES], blocks, behind)
        return PathJob(call_id, work, partial(self._exported, cached))

    def import_(self, call_id: int, path: ImportPath) -> PathJob:
        """The job that reads a file and gives its blocks to the tiers below the device, or to the device if there are
        none."""
        key = pack_tokens(path.token_ids)
        below = self._transfer is not None and self._transfer.tiers.first_for(path.lifetime) is not None
        if below:
            below_work = partial(self._import_below, path, key)
            return PathJob(call_id, below_work, partial(self._imported_below, path.cache_salt, key))
        work = partial(self._read_all, Path(path.file), key)
        return PathJob(call_id, work, partial(self._adopt, path, key))

    # -- export ---------------------------------------------------------------------------------------------------

    def _export(self, file: Path, key: bytes, blocks: list[int], behind: list[bytes]) -> ExportOutcome:
        """Write the pool's ``blocks`` and those of the keys ``behind`` them: the KV of the tokens of ``key``."""
        keys = path_keys(self._fingerprint, key)
        written: list[int] = []

        def contents() -> Iterator[Block]:
            for block, (_, num_tokens) in zip(self._contents(blocks, behind), keys, strict=False):
                written.append(num_tokens)
                yield block

        num_bytes = write_kv_file(file, self._fingerprint, keys, contents())
        return ExportOutcome(tokens=sum(written), num_bytes=num_bytes)

    def _contents(self, blocks: list[int], behind: list[bytes]) -> Iterator[Block]:
        """What is still there, without a gap; each is valid until the next."""
        for piece in self._pool.read(blocks):
            yield from piece
        scratch = np.empty(self._pool.block_bytes, dtype=np.uint8)
        for content_key in behind:
            if self._transfer is None or not self._transfer.tiers.load(content_key, scratch):
                return
            yield scratch

    def _exported(self, cached: CachedPath, outcome: ExportOutcome | None) -> CacheResponse | None:
        self._cache.let_go(cached)
        return outcome

    # -- import ---------------------------------------------------------------------------------------------------

    def _read_all(self, file: Path, key: bytes) -> list[KVBlock]:
        return list(read_kv_file(file, self._fingerprint, key))

    def _import_below(self, path: ImportPath, key: bytes) -> bool:
        assert self._transfer is not None
        tiers, salt = self._transfer.tiers, path.cache_salt
        keys = self._cache.content_keys(salt, key)
        blocks = read_kv_file(Path(path.file), self._fingerprint, key)
        for first in itertools.count(0, _AT_ONCE):
            part = list(itertools.islice(blocks, _AT_ONCE))
            content_keys = [self._content_key(salt, key, keys, first + i, each) for i, each in enumerate(part)]
            tiers.keep_all(content_keys, [each.block for each in part], salt, path.lifetime)
            if len(part) < _AT_ONCE:
                return True
        return True

    def _content_key(self, salt: str, key: bytes, keys: list[bytes], index: int, block: KVBlock) -> bytes:
        """Of block ``index`` of the path ``key``, whose whole blocks have ``keys``."""
        size = self._fingerprint.block_size
        if block.num_tokens == size:
            return keys[index]
        start = index * size * TOKEN_BYTES
        tail = key[start : start + block.num_tokens * TOKEN_BYTES]
        return self._cache.tail_keys(salt, keys[index - 1] if index else None, tail)[0].content_key

    def _imported_below(self, salt: str, key: bytes, result: object) -> CacheResponse | None:
        if result is None:
            return None
        tokens = self._lookup.tokens_below(salt, key)
        return ImportOutcome(tokens=max(tokens.values(), default=0), tokens_by_tier=tokens)

    def _adopt(self, path: ImportPath, key: bytes, blocks: list[KVBlock] | None) -> CacheResponse | None:
        """Put blocks that were read into the pool, behind what is there already."""
        if blocks is None:
            return None
        num_tokens = sum(each.num_tokens for each in blocks)
        key = key[: num_tokens * TOKEN_BYTES]
        match = self._cache.match(path.cache_salt, key).whole_blocks()
        admitted = self._cache.admit(match, num_tokens, 0, path.owner, path.lifetime)
        if admitted is None:
            raise CapacityError(f"the KV pool has no room for {num_tokens} tokens", retry_after_s=1.0)
        held, _ = admitted
        new = range(len(match.blocks), len(blocks))
        write_blocks(self._pool, [held.block_ids[i] for i in new], [blocks[i].block for i in new])
        self._cache.release(held, key[held.num_cached_tokens * TOKEN_BYTES :], num_tokens)
        return ImportOutcome(tokens=num_tokens, tokens_by_tier={Tier.DEVICE.value: num_tokens})
