"""What each running sequence holds of the cache: blocks that it shares with others and blocks of its own.

The blocks of a sequence, in order:

      |<------------- in the tree, locked ------------->|<--- its own, no one else sees them --->|
      | matched at admission | inserted as computed      | being written      | reserved          |
                                                         ^ num_cached_tokens, on a block border

``PrefixCache`` alone moves this border. It never touches tensors: a copy on write is returned for the engine to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from .block_pool import BlockPool
from .keys import BlockKeys
from .lifetime import Lifetime
from .path_ends import Kept, PathEnds
from .radix_node import Match, PathLock
from .radix_tree import RadixTree
from .retention import Retention
from .token_key import TOKEN_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy the KV of the first ``num_tokens`` tokens of block ``source`` to block ``target``."""

    source: int
    target: int
    num_tokens: int


@dataclasses.dataclass(slots=True, eq=False)
class SequenceBlocks:
    """The blocks of one sequence; changed by ``PrefixCache`` alone."""

    lock: PathLock
    block_ids: list[int]
    num_cached_tokens: int  # tokens whose blocks belong to the tree; on a block border
    num_matched_blocks: int  # of the tree's, those that were there at admission
    num_durable_blocks: int  # of those, how many came from turns whose KV may outlive the process
    num_matched_tokens: int  # their tokens, and those of a block that is copied on write
    content_keys: list[bytes]  # of the tree's blocks, in order
    root_key: bytes  # what the content key of the first block hangs on
    owner: str = ""  # the session; empty: none


@dataclasses.dataclass(frozen=True, slots=True)
class TailKey:
    """The content key of a block that holds ``num_tokens`` tokens, less than a block's."""

    num_tokens: int
    content_key: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class CachedPath:
    """What is cached of a path, locked: ``num_tokens`` tokens in ``blocks``, a half-full last one included."""

    locks: list[PathLock]
    content_keys: list[bytes]
    blocks: list[int]
    num_tokens: int


class PrefixCache:
    """Hands out blocks to sequences and takes them back, with their tokens, into the radix tree.

    ``ends`` knows which session wants what to be kept. ``on_stored`` hears, when a sequence ends, of its owner, how
    many tokens it added, and the content key of its last whole block.
    """

    def __init__(
        self,
        pool: BlockPool,
        tree: RadixTree,
        keys: BlockKeys,
        ends: PathEnds,
        on_stored: Callable[[str, int, bytes], None] = lambda owner, num_tokens, content_key: None,
    ) -> None:
        self._pool = pool
        self._tree = tree
        self._keys = keys
        self._ends = ends
        self._on_stored = on_stored
        self.block_size = keys.fingerprint.block_size

    @property
    def tree(self) -> RadixTree:
        """The tree, to look at."""
        return self._tree

    @property
    def block_bytes(self) -> int:
        """Size of a block's KV."""
        return self._keys.fingerprint.block_bytes

    @property
    def num_available(self) -> int:
        """Blocks that could be handed out now: the free ones and those that the tree would give up."""
        return self._pool.num_free + self._tree.num_evictable_blocks

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def match(self, salt: str, key: bytes) -> Match:
        """The longest cached prefix of ``key``; changes nothing."""
        return self._tree.match(salt, key)

    def content_keys_after(self, match: Match, key: bytes) -> list[bytes]:
        """The content keys of the whole blocks of ``key`` that ``match`` does not have."""
        parent = match.content_keys[-1] if match.content_keys else self._keys.root(match.salt)
        return self._keys.chain(parent, memoryview(key)[len(match.blocks) * self.block_size * TOKEN_BYTES :])

    def tail_keys(self, salt: str, parent: bytes | None, key: bytes) -> list[TailKey]:
        """The content keys that a half-full block with the first tokens of ``key`` would have, the fullest first.
        ``parent``: the content key of the whole block before it; None: there is none."""
        parent = self._keys.root(salt) if parent is None else parent
        most = min(len(key) // TOKEN_BYTES, self.block_size - 1)
        return [TailKey(n, self._keys.tail(parent, key[: n * TOKEN_BYTES])) for n in range(most, 0, -1)]

    def tail_key(self, held: SequenceBlocks, tail: bytes) -> bytes:
        """The content key of the block after the whole ones of ``held``, half full with the tokens of ``tail``."""
        return self._keys.tail(held.content_keys[-1] if held.content_keys else held.root_key, tail)

    def admit(
        self,
        match: Match,
        num_tokens: int,
        spare_blocks: int,
        owner: str = "",
        lifetime: Lifetime = Lifetime.DURABLE,
    ) -> tuple[SequenceBlocks, BlockCopy | None] | None:
        """Give a sequence of ``owner``'s the blocks of ``match`` and new ones up to ``num_tokens`` tokens.

        ``lifetime``: how far its KV may go.

        Returns None, and changes nothing that matters, unless ``spare_blocks`` more stay available for those that run.
        The copy, if any, must be done before anything else is written to the pool: its source may be free already.
        There is none, although ``match`` has a partial block, where the sequence needs that block itself.
        """
        num_durable = self._tree.num_durable_blocks(match)
        lock = self._tree.lock(match)
        wanted = self.blocks_for(num_tokens) - len(match.blocks)
        if wanted + spare_blocks > self.num_available:
            self._tree.unlock(lock)
            return None
        self._tree.use(lock, lifetime)
        self._ends.begin_turn(owner)
        if wanted == self.num_available:
            match = match.whole_blocks()
        protected = [] if match.partial_block is None else [match.partial_block]
        self._pool.retain(protected)
        new_blocks = self._allocate(wanted)
        self._pool.release(protected)
        assert new_blocks is not None, "a block that is said to be available is not"
        copy = None
        if match.partial_block is not None:
            copy = BlockCopy(match.partial_block, new_blocks[0], match.partial_tokens)
        held = SequenceBlocks(
            lock=lock,
            block_ids=match.blocks + new_blocks,
            num_cached_tokens=len(match.blocks) * self.block_size,
            num_matched_blocks=len(match.blocks),
            num_durable_blocks=num_durable,
            num_matched_tokens=match.num_tokens,
            content_keys=list(match.content_keys),
            root_key=self._keys.root(match.salt),
            owner=owner,
        )
        return held, copy

    def grow(self, held: SequenceBlocks, num_tokens: int) -> bool:
        """Reserve blocks so that ``num_tokens`` tokens fit; False if the pool cannot give them."""
        wanted = self.blocks_for(num_tokens) - len(held.block_ids)
        if wanted <= 0:
            return True
        new_blocks = self._allocate(wanted)
        if new_blocks is None:
            return False
        held.block_ids += new_blocks
        return True

    def shrink(self, held: SequenceBlocks, num_tokens: int) -> bool:
        """Give back the blocks that ``num_tokens`` tokens do not need, at least those of the tree; False if there are
        none."""
        spare = held.block_ids[self.blocks_for(num_tokens) :]
        if spare:
            del held.block_ids[-len(spare) :]
            self._pool.release(spare)
        return bool(spare)

    def leave_behind(self, held: SequenceBlocks, first: int, count: int) -> list[int]:
        """Take the blocks from ``first`` on from a sequence, which go on as if it had never got them. The first
        ``count`` of them are still being written to: they are returned, and stay in use until ``take_back``."""
        left, others = held.block_ids[first : first + count], held.block_ids[first + count :]
        del held.block_ids[first:]
        self._pool.release(others)
        return left

    def take_back(self, blocks: list[int]) -> None:
        """Nobody writes to ``blocks`` any more, which were left behind."""
        self._pool.release(blocks)

    def branch(self, held: SequenceBlocks, start: int, num_tokens: int) -> tuple[list[int], BlockCopy | None] | None:
        """New blocks in which tokens ``start`` to ``num_tokens`` can stand otherwise than in those of ``held``: the
        first is for the block of token ``start``, whose tokens before it the copy brings. None if the pool cannot give
        them.

        They belong to nobody: ``adopt_branch`` or ``drop_branch`` must follow.
        """
        first, offset = divmod(start, self.block_size)
        blocks = self._allocate(self.blocks_for(num_tokens) - first)
        if blocks is None:
            return None
        return blocks, BlockCopy(held.block_ids[first], blocks[0], offset) if offset else None

    def adopt_branch(self, held: SequenceBlocks, start: int, blocks: Sequence[int]) -> None:
        """Go on with ``blocks``, a branch at token ``start``, instead of the sequence's own from there on. What is in
        the tree by now stays: the branch's copy of it is given back."""
        first = start // self.block_size
        kept = max(first, held.num_cached_tokens // self.block_size)
        self._pool.release([*held.block_ids[kept:], *blocks[: kept - first]])
        held.block_ids[kept:] = blocks[kept - first :]

    def drop_branch(self, blocks: Sequence[int]) -> None:
        """Give the blocks of a branch back."""
        self._pool.release(list(blocks))

    def commit(self, held: SequenceBlocks, key: bytes, num_computed: int) -> list[int]:
        """Put the blocks that became full into the tree, where others find them at once.

        ``key``: the packed tokens from ``held.num_cached_tokens`` on. Where the tree has blocks for these tokens
        already, the sequence goes on with those and gives its own back; returns the indices in ``block_ids`` that
        changed.
        """
        first = held.num_cached_tokens // self.block_size
        full = num_computed // self.block_size
        if full <= first:
            return []
        own = held.block_ids[first:full]
        key = key[: len(own) * self.block_size * TOKEN_BYTES]
        parent = held.content_keys[-1] if held.content_keys else held.root_key
        content_keys = self._keys.chain(parent, key)
        kept = self._tree.insert(held.lock, key, own, content_keys)
        held.content_keys += content_keys
        self._pool.release(own)
        held.block_ids[first:full] = kept
        held.num_cached_tokens = full * self.block_size
        return [first + i for i, (mine, theirs) in enumerate(zip(own, kept, strict=True)) if mine != theirs]

    def release(self, held: SequenceBlocks, key: bytes, num_computed: int) -> None:
        """End a sequence's hold. What it computed stays cached, the half-full last block included.

        ``key``: the packed tokens from ``held.num_cached_tokens`` on, at least up to ``num_computed``.
        """
        start = held.num_cached_tokens
        self.commit(held, key, num_computed)
        tail_tokens = num_computed - held.num_cached_tokens
        own = held.block_ids[held.num_cached_tokens // self.block_size :]
        end = held.lock.node
        if tail_tokens > 0:
            tail = key[(held.num_cached_tokens - start) * TOKEN_BYTES : (num_computed - start) * TOKEN_BYTES]
            end = self._tree.insert_tail(held.lock, tail, own[0], self.tail_key(held, tail))
        self._pool.release(own)
        self._ends.end_turn(held.owner, end)
        if num_computed > held.num_matched_tokens:
            self._on_stored(
                held.owner,
                num_computed - held.num_matched_tokens,
                held.content_keys[-1] if held.content_keys else held.root_key,
            )
        self._tree.unlock(held.lock)
        held.block_ids = []

    def make_way(self) -> bool:
        """Nothing runs, and a turn finds no room: break the hard pin that counts least. False: there is none."""
        return self._ends.break_pin() is not None

    # -- what sessions ask for ------------------------------------------------------------------------------------

    def retain(self, owner: str, salt: str, key: bytes, retention: Retention) -> Kept:
        """Keep the cached part of ``owner``'s path ``key`` as ``retention`` says."""
        return self._ends.retain(owner, self.match(salt, key), len(key) // TOKEN_BYTES, retention)

    def supersede(self, owner: str, salt: str, key: bytes, from_token: int) -> None:
        """Let the tokens of ``key`` from ``from_token`` on go first, as far as nobody else shares them. ``owner``'s
        path ends before them now. Tokens in the same block as earlier ones stay with these."""
        self._ends.move_back(owner, self.match(salt, key[: from_token * TOKEN_BYTES]))
        end = self._tree.end_of(self.match(salt, key))
        if end is not None:
            self._tree.supersede(end, self.blocks_for(from_token))

    def hold(self, salt: str, key: bytes) -> CachedPath:
        """Keep what is cached of ``key`` as it is until ``let_go``."""
        match = self.match(salt, key)
        whole = self._tree.lock(match)
        tail = match.tail
        if tail is None:
            return CachedPath([whole], match.content_keys, match.blocks, match.num_tokens - match.partial_tokens)
        locks = [whole, self._tree.lock_tail(tail)]
        keys, blocks = [*match.content_keys, *tail.content_keys], [*match.blocks, *tail.blocks]
        return CachedPath(locks, keys, blocks, match.num_tokens)

    def let_go(self, path: CachedPath) -> None:
        """End ``hold``."""
        for lock in path.locks:
            self._tree.unlock(lock)

    def content_keys(self, salt: str, key: bytes) -> list[bytes]:
        """The content keys of the whole blocks of ``key``."""
        return self._keys.chain(self._keys.root(salt), key)

    def give_up(self, owner: str, salt: str, key: bytes) -> int:
        """Evict the cached part of ``key`` as far as nobody else shares it; returns how many blocks."""
        end = self._tree.end_of(self.match(salt, key))
        return 0 if end is None else self._tree.give_up(end, owner)

    def _allocate(self, count: int) -> list[int] | None:
        """``count`` free blocks, after evicting what that takes; None, and nothing taken, if that is not enough."""
        while self._pool.num_free < count:
            if self._tree.evict(count - self._pool.num_free) == 0:
                return None
        return self._pool.allocate(count)
