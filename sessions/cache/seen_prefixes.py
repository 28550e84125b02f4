"""What an unlimited cache would have: an index of all token sequences that were ever computed, without their KV.

A prefix is named by a hash of its tokens and their places; below each name that ends on a block border stand the tokens
of the blocks that followed it:

      hash(16 tokens) -> [tokens 16..31 of one sequence, tokens 16..20 of another]

So finding the longest known beginning of a prompt is one bisection over its block borders, and a comparison of one
block's tokens: exact to the token, however it diverges. Hashes have 64 bits and a random key, so a false match is not
to be met with. They are sums over places, which numpy makes at once for all borders of a prompt.

Memory is bounded by two generations. What is looked up or noted moves to the young one; when that is full it becomes
the old one, and the old one is forgotten. ``num_forgotten`` says how many blocks were: while it is 0, all is exact.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import os

import numpy as np
import numpy.typing as npt

from .token_key import common_prefix_tokens, pack_tokens

_FIRST_PLACES = 1 << 12


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """How many leading tokens of a prompt were computed before: under its own salt, and under any (whole blocks)."""

    own_salt: int
    any_salt: int


class SeenPrefixes:
    """Alone owns the index. Not safe for threads. ``max_blocks`` bounds it: about 200 bytes each."""

    def __init__(self, block_size: int, max_blocks: int, seed: bytes | None = None) -> None:
        self._block_size = block_size
        self._most_young = max(1, max_blocks // 2)
        self._secret = os.urandom(32) if seed is None else seed
        self._random = np.random.default_rng(list(self._secret))
        self._factors: npt.NDArray[np.uint64] = np.empty(0, dtype=np.uint64)  # [places]
        self._young = _Generation()
        self._old = _Generation()
        self.num_forgotten = 0  # blocks

    @property
    def num_blocks(self) -> int:
        """Blocks that are known, half-full ones included."""
        return self._young.num_blocks + self._old.num_blocks

    def longest(self, salt: str, token_ids: npt.NDArray[np.integer]) -> Seen:
        """The longest beginning of ``token_ids`` (``[n]``) that was noted. What is found is kept for longer."""
        borders = self._borders(token_ids)
        keys = borders + self._offset(salt)
        blocks = self._known_blocks(keys)
        own = 0
        if blocks is not None:
            self._keep(keys[: blocks + 1])
            own = blocks * self._block_size + self._inside_block(int(keys[blocks]), token_ids, blocks)
        return Seen(own, max(own - own % self._block_size, self._known_to_anyone(borders)))

    def note(self, salt: str, token_ids: npt.NDArray[np.integer]) -> None:
        """Remember that the KV of ``token_ids`` (``[n]``) was computed."""
        if not len(token_ids):
            return
        borders = self._borders(token_ids)
        keys = borders + self._offset(salt)
        known = self._known_blocks(keys)
        if known is not None:
            self._keep(keys[: known + 1])
        size = self._block_size
        for start in range((known or 0) * size, len(token_ids), size):
            block = pack_tokens(token_ids[start : start + size])
            self._young.add(int(keys[start // size]), block)
        self._young.anyone.update(borders[1:].tolist())
        if self._young.num_blocks > self._most_young:
            self._turn_generations()

    # -- names ----------------------------------------------------------------------------------------------------

    def _borders(self, token_ids: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
        """Hashes of the prefixes that end on block borders, the empty one first: [n // block_size + 1]."""
        blocks = len(token_ids) // self._block_size
        count = blocks * self._block_size
        terms = (token_ids[:count].astype(np.uint64) + np.uint64(1)) * self._factors_for(count)
        sums = terms.reshape(blocks, self._block_size).sum(axis=1, dtype=np.uint64).cumsum(dtype=np.uint64)
        return np.concatenate((np.zeros(1, dtype=np.uint64), sums))

    def _factors_for(self, count: int) -> npt.NDArray[np.uint64]:
        while len(self._factors) < count:
            more = self._random.integers(0, 2**64, max(_FIRST_PLACES, len(self._factors)), dtype=np.uint64)
            self._factors = np.concatenate((self._factors, more))
        return self._factors[:count]

    def _offset(self, salt: str) -> np.uint64:
        digest = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=8, key=self._secret).digest()
        return np.uint64(int.from_bytes(digest, "little"))

    # -- lookups --------------------------------------------------------------------------------------------------

    def _known_blocks(self, keys: npt.NDArray[np.uint64]) -> int | None:
        """The last border that something is known to follow; None where not even a first block is known.

        A known border has known ones before it, so this is a bisection.
        """
        known, unknown = -1, len(keys)
        while unknown - known > 1:
            middle = (known + unknown) // 2
            key = int(keys[middle])
            if key in self._young.following or key in self._old.following:
                known = middle
            else:
                unknown = middle
        return known if known >= 0 else None

    def _inside_block(self, key: int, token_ids: npt.NDArray[np.integer], blocks: int) -> int:
        """How many tokens after the border ``key`` some known block shares."""
        rest = pack_tokens(token_ids[blocks * self._block_size : (blocks + 1) * self._block_size])
        followers = self._young.following[key]
        place = bisect.bisect_left(followers, rest)
        neighbours = followers[max(0, place - 1) : place + 1]
        return max((common_prefix_tokens(block, rest) for block in neighbours), default=0)

    def _known_to_anyone(self, borders: npt.NDArray[np.uint64]) -> int:
        known, unknown = 0, len(borders)
        while unknown - known > 1:
            middle = (known + unknown) // 2
            border = int(borders[middle])
            if border in self._young.anyone or border in self._old.anyone:
                known = middle
            else:
                unknown = middle
        return known * self._block_size

    # -- generations ----------------------------------------------------------------------------------------------

    def _keep(self, keys: npt.NDArray[np.uint64]) -> None:
        """Move a path to the young generation. Where one border is young, those before it are."""
        for key in reversed(keys.tolist()):
            if key in self._young.following and key not in self._old.following:
                return
            for block in self._old.take(key):
                self._young.add(key, block)

    def _turn_generations(self) -> None:
        self.num_forgotten += self._old.num_blocks
        self._old, self._young = self._young, _Generation()


class _Generation:
    """Blocks by the border that they follow, sorted; and the borders that were reached under whatever salt."""

    def __init__(self) -> None:
        self.following: dict[int, list[bytes]] = {}
        self.anyone: set[int] = set()
        self.num_blocks = 0

    def add(self, key: int, block: bytes) -> None:
        """Let ``block`` follow ``key``. A half-full block that it begins with says nothing more."""
        followers = self.following.setdefault(key, [])
        place = bisect.bisect_left(followers, block)
        if place < len(followers) and followers[place].startswith(block):
            return
        if place and block.startswith(followers[place - 1]):
            followers[place - 1] = block
            return
        followers.insert(place, block)
        self.num_blocks += 1

    def take(self, key: int) -> list[bytes]:
        """Remove and return what follows ``key``."""
        followers = self.following.pop(key, [])
        self.num_blocks -= len(followers)
        return followers
