"""Replays agents' sessions through the cache alone, without a model: what share of their prompts has to be computed?

``python -m sessile.sessions.cache.bench_replay TRACES [SESSIONS]``. Compared are a pool without bounds and one of a
tenth of what that took, with a host tier of three tenths and a disk. A token is four bytes of text here.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .block_pool import BlockPool
from .disk.config import DiskConfig
from .disk.disk_tier import DiskTier
from .host_tier import allocate_slab
from .keys import BlockKeys, KVFingerprint
from .lower_tiers import LowerTiers
from .path_ends import PathEnds
from .prefix_cache import PrefixCache
from .radix_node import Evicted
from .radix_tree import RadixTree
from .token_key import TOKEN_BYTES, pack_tokens

BLOCK_TOKENS = 16
BLOCK_BYTES = 64  # in place of KV: what is measured is where blocks are found, not how fast they move
SESSIONS = 64
START_APART_S = 0.5  # so that most of the sessions are under way at once
FINGERPRINT = KVFingerprint("replay", "", "", BLOCK_TOKENS, BLOCK_BYTES, "")


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One prompt and its answer, as packed tokens."""

    at: float
    session: str
    salt: str
    prompt: bytes
    whole: bytes  # the answer included


@dataclasses.dataclass(slots=True)
class Outcome:
    """Prompt tokens by where they came from."""

    total: int = 0
    device: int = 0
    lower: int = 0
    most_blocks: int = 0  # cached at once

    @property
    def share(self) -> float:
        return (self.device + self.lower) / self.total


def read_requests(folder: Path, count: int) -> list[Request]:
    """The requests of ``count`` sessions by time. Sessions are repeated, as another tenant's, if there are fewer."""
    files = sorted([*folder.glob("miniswe/*.jsonl"), *folder.glob("magagent/*.jsonl")])
    requests: list[Request] = []
    for index in range(count):
        file, copy = files[index % len(files)], index // len(files)
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]
        first = lines[0]["timestamp"]
        for line in lines:
            prompt, answer = _packed(line["input"]), _packed(line["output"])
            at = (line["timestamp"] - first) / 1e6 + START_APART_S * index
            requests.append(Request(at, f"{file.stem}-{copy}", str(copy), prompt, prompt + answer))
    return sorted(requests, key=lambda request: request.at)


def _packed(content: object) -> bytes:
    text = content if isinstance(content, str) else json.dumps(content)
    encoded = text.encode()
    encoded += bytes(-len(encoded) % TOKEN_BYTES)
    return pack_tokens(np.frombuffer(encoded, dtype=np.int32) & 0x7FFFFFFF)


class Replay:
    """The cache as the engine puts it together, without the engine."""

    def __init__(self, num_blocks: int, lower: LowerTiers | None) -> None:
        self._now = 0.0
        self._lower = lower
        self._block = np.zeros(BLOCK_BYTES, dtype=np.uint8)
        pool = BlockPool(num_blocks)
        self._tree = RadixTree(pool, BLOCK_TOKENS, on_evict=self._demote, clock=lambda: self._now)
        self._cache = PrefixCache(
            pool, self._tree, BlockKeys(FINGERPRINT), PathEnds(self._tree, lambda: self._now, budget_blocks=0)
        )
        self.outcome = Outcome()

    def run(self, requests: list[Request]) -> Outcome:
        for request in requests:
            self._now = request.at
            self._turn(request)
            self.outcome.most_blocks = max(self.outcome.most_blocks, self._tree.num_blocks)
        return self.outcome

    def _turn(self, request: Request) -> None:
        key = request.prompt[:-TOKEN_BYTES]
        match = self._cache.match(request.salt, key)
        found = self._find(request.salt, key, len(match.blocks))
        start = len(match.blocks) * BLOCK_TOKENS
        self.outcome.total += len(request.prompt) // TOKEN_BYTES
        if found > match.partial_tokens:
            match = match.whole_blocks()
            self.outcome.device += start
            self.outcome.lower += found
        else:
            self.outcome.device += match.num_tokens
        num_tokens = len(request.whole) // TOKEN_BYTES
        admitted = self._cache.admit(match, num_tokens, 0, request.session)
        if admitted is None:
            raise RuntimeError(f"a prompt of {num_tokens} tokens does not fit the pool")
        held, _ = admitted
        rest = request.whole[held.num_cached_tokens * TOKEN_BYTES :]
        self._cache.commit(held, rest, num_tokens)
        if self._lower is not None:
            self._lower.persist(held.content_keys, [self._block] * len(held.content_keys), held.num_matched_blocks)
        self._cache.release(held, request.whole[held.num_cached_tokens * TOKEN_BYTES :], num_tokens)

    def _find(self, salt: str, key: bytes, num_blocks: int) -> int:
        """Tokens after the first ``num_blocks`` that the lower tiers have."""
        if self._lower is None:
            return 0
        keys = self._cache.content_keys(salt, key)
        count = num_blocks + sum(source.num_blocks for source in self._lower.sources(keys[num_blocks:]))
        rest = key[count * BLOCK_TOKENS * TOKEN_BYTES :]
        for tail in self._cache.tail_keys(salt, keys[count - 1] if count else None, rest):
            if self._lower.holder(tail.content_key) is not None:
                return (count - num_blocks) * BLOCK_TOKENS + tail.num_tokens
        return (count - num_blocks) * BLOCK_TOKENS

    def _demote(self, evicted: Evicted) -> None:
        if self._lower is not None:
            for content_key in evicted.content_keys:
                self._lower.demote(content_key, self._block)


def replay(folder: Path, count: int) -> Iterator[str]:
    """The lines of the report."""
    requests = read_requests(folder, count)
    started = time.perf_counter()
    unlimited = Replay(1 << 22, None).run(requests)
    yield (
        f"{count} sessions, {len(requests)} requests, {unlimited.total:,} prompt tokens; the working set is "
        f"{unlimited.most_blocks:,} blocks ({time.perf_counter() - started:.1f} s)"
    )
    yield f"unlimited pool: {unlimited.share:.2%} not computed"
    longest = max(len(request.whole) for request in requests) // TOKEN_BYTES // BLOCK_TOKENS + 2
    pool = max(unlimited.most_blocks // 10, longest)
    alone = Replay(pool, None).run(requests)
    yield f"a pool of {pool:,} blocks, alone: {alone.share:.2%}"
    with tempfile.TemporaryDirectory() as name:
        slab = allocate_slab(3 * pool * BLOCK_BYTES, BLOCK_BYTES)
        disk = DiskTier(DiskConfig(path=name, quota_bytes=20 * pool * BLOCK_BYTES), FINGERPRINT)
        lower = LowerTiers(slab, disk)
        tiered = Replay(pool, lower).run(requests)
        lower.close()
    lost = 100 * (unlimited.share - tiered.share)
    yield (
        f"the same over a host tier of {3 * pool:,} blocks and a disk: {tiered.share:.2%}, of which the pool "
        f"{tiered.device / tiered.total:.2%}; {lost:.2f} points below the unlimited pool"
    )


def main() -> None:
    """Print the report."""
    count = int(sys.argv[2]) if len(sys.argv) > 2 else SESSIONS
    for line in replay(Path(sys.argv[1]), count):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
