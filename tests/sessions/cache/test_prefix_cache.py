"""Pool, radix tree and prefix cache against plain models, after every operation.

The model of the KV memory is a dict: what a block holds at each offset is the whole token prefix up to there, as a
tuple. So a block that was shared, copied, swapped or evicted wrongly shows as a wrong prefix.
"""

from __future__ import annotations

import dataclasses
import time

from cache_keys import block_keys
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from sessile.sessions.cache.block_pool import BlockPool
from sessile.sessions.cache.lifetime import Lifetime
from sessile.sessions.cache.path_ends import PathEnds
from sessile.sessions.cache.prefix_cache import PrefixCache, SequenceBlocks
from sessile.sessions.cache.radix_tree import RadixTree
from sessile.sessions.cache.token_key import pack_tokens, unpack_tokens

BLOCK_SIZE = 4
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=26)
SALTS = st.sampled_from(["", "other"])


@dataclasses.dataclass(eq=False)
class Running:
    salt: str
    tokens: list[int]
    num_computed: int
    held: SequenceBlocks
    lifetime: Lifetime


class CacheMachine(RuleBasedStateMachine):
    running = Bundle("running")
    num_blocks = 24

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.num_blocks)
        self.tree = RadixTree(self.pool, BLOCK_SIZE)
        self.cache = PrefixCache(self.pool, self.tree, block_keys(BLOCK_SIZE), PathEnds(self.tree, time.monotonic, 0))
        self.memory: dict[tuple[int, int], tuple[str, tuple[int, ...]]] = {}
        self.live: list[Running] = []
        self.cached: set[tuple[str, tuple[int, ...]]] = set()  # prefixes that the tree was given
        self.durable: set[tuple[str, tuple[int, ...]]] = set()  # prefixes of turns whose KV may outlive the process

    def holds(self, salt: str, tokens: list[int], blocks: list[int], stop: int) -> bool:
        return all(
            self.memory[blocks[i // BLOCK_SIZE], i % BLOCK_SIZE] == (salt, tuple(tokens[: i + 1])) for i in range(stop)
        )

    def compute(self, turn: Running, stop: int) -> None:
        for i in range(turn.num_computed, stop):
            content = (turn.salt, tuple(turn.tokens[: i + 1]))
            self.memory[turn.held.block_ids[i // BLOCK_SIZE], i % BLOCK_SIZE] = content
        turn.num_computed = stop
        self.note_durable(turn)
        key = pack_tokens(turn.tokens[turn.held.num_cached_tokens : stop])
        self.cache.commit(turn.held, key, stop)
        self.note_cached(turn, turn.held.num_cached_tokens)

    def note_durable(self, turn: Running) -> None:
        if turn.lifetime is Lifetime.DURABLE:
            self.durable.update((turn.salt, tuple(turn.tokens[:n])) for n in range(turn.num_computed + 1))

    def note_cached(self, turn: Running, stop: int) -> None:
        self.cached.update((turn.salt, tuple(turn.tokens[:n])) for n in range(1, stop + 1))

    @rule(target=running, salt=SALTS, tokens=TOKENS, spare=st.integers(0, 3), lifetime=st.sampled_from(list(Lifetime)))
    def admit(self, salt: str, tokens: list[int], spare: int, lifetime: Lifetime):
        key = pack_tokens(tokens[:-1])
        before = (self.pool.num_free, self.tree.num_blocks)
        match = self.cache.match(salt, key)
        assert (self.pool.num_free, self.tree.num_blocks) == before, "match changed something"
        blocks = match.blocks + ([] if match.partial_block is None else [match.partial_block])
        assert self.holds(salt, tokens, blocks, match.num_tokens)
        assert match.num_tokens <= len(tokens) - 1
        best = max((n for n in range(len(tokens)) if (salt, tuple(tokens[:n])) in self.cached), default=0)
        assert match.num_tokens == best if self.tree.num_evicted == 0 else match.num_tokens <= best
        evicted = self.tree.num_evicted
        admitted = self.cache.admit(match, len(tokens), spare, lifetime=lifetime)
        if admitted is None:
            assert self.cache.num_available < self.cache.blocks_for(len(tokens)) + spare
            assert self.tree.num_evicted == evicted, "a refused turn pushed others' blocks out"
            return multiple()
        held, copy = admitted
        assert held.num_matched_tokens in (match.num_tokens, match.num_tokens - match.partial_tokens)
        if copy is not None:
            for offset in range(copy.num_tokens):
                self.memory[copy.target, offset] = self.memory[copy.source, offset]
        known = held.num_durable_blocks * BLOCK_SIZE
        assert known == 0 or (salt, tuple(tokens[:known])) in self.durable, "what was never persisted counts as if"
        turn = Running(salt, tokens, held.num_matched_tokens, held, lifetime)
        self.note_durable(turn)
        self.live.append(turn)
        return turn

    @rule(turn=running, count=st.integers(1, 9))
    def prefill(self, turn: Running, count: int) -> None:
        self.compute(turn, min(len(turn.tokens), turn.num_computed + count))

    @rule(turn=running, token=st.integers(0, 2))
    def decode(self, turn: Running, token: int) -> None:
        turn.tokens.append(token)
        if self.cache.grow(turn.held, len(turn.tokens)):
            self.compute(turn, len(turn.tokens))
        else:
            assert self.cache.num_available == 0
            turn.tokens.pop()

    @rule(turn=consumes(running))
    def release(self, turn: Running) -> None:
        evicted = self.tree.num_evicted
        key = pack_tokens(turn.tokens[turn.held.num_cached_tokens : turn.num_computed])
        self.cache.release(turn.held, key, turn.num_computed)
        self.live.remove(turn)
        self.note_cached(turn, turn.num_computed)
        assert self.tree.num_evicted == evicted
        again = self.cache.match(turn.salt, pack_tokens(turn.tokens[: turn.num_computed]))
        assert again.num_tokens == turn.num_computed, "what was computed is not found again"

    @rule(count=st.integers(1, 24))
    def evict(self, count: int) -> None:
        evictable = self.tree.num_evictable_blocks
        assert self.tree.evict(count) == min(count, evictable)

    @invariant()
    def integrity(self) -> None:
        self.pool.check_integrity()
        self.tree.check_integrity()
        own = sum(len(t.held.block_ids) - t.held.num_cached_tokens // BLOCK_SIZE for t in self.live)
        assert self.pool.num_free + self.tree.num_blocks + own == self.num_blocks
        if not self.live:
            assert self.tree.num_evictable_blocks == self.tree.num_blocks, "a lock without a user"

    @invariant()
    def what_may_outlive_the_process_is_of_a_turn_that_may(self) -> None:
        paths = [(root, b"") for root in self.tree.roots]
        while paths:
            node, before = paths.pop()
            key = before + bytes(node.key)
            assert (
                node.parent is None
                or node.lifetime is Lifetime.PROCESS
                or ((node.salt, tuple(unpack_tokens(key))) in self.durable)
            )
            paths += [(child, key) for child in node.children]

    @invariant()
    def running_turns_keep_their_tokens(self) -> None:
        for turn in self.live:
            assert self.holds(turn.salt, turn.tokens, turn.held.block_ids, turn.num_computed)


class FullPoolMachine(CacheMachine):
    """The longest turn takes the whole pool."""

    num_blocks = 7


TestPrefixCache = CacheMachine.TestCase
TestPrefixCache.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestFullPool = FullPoolMachine.TestCase
TestFullPool.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_a_prompt_that_fills_the_pool_does_without_a_copy() -> None:
    pool = BlockPool(3)
    tree = RadixTree(pool, BLOCK_SIZE)
    cache = PrefixCache(pool, tree, block_keys(BLOCK_SIZE), PathEnds(tree, time.monotonic, 0))
    tokens = list(range(3 * BLOCK_SIZE))
    held, _ = cache.admit(cache.match("", b""), len(tokens), 0)
    cache.release(held, pack_tokens(tokens), len(tokens))

    match = cache.match("", pack_tokens([*tokens[: 2 * BLOCK_SIZE - 1], 99]))
    assert match.partial_tokens == BLOCK_SIZE - 1
    held, copy = cache.admit(match, len(tokens), 0)
    assert copy is None
    assert held.num_cached_tokens == BLOCK_SIZE


def test_a_tail_that_goes_on_privately_stays_private() -> None:
    """A durable turn ends in the middle of a half-full block of one whose KV must not outlive the process."""
    pool = BlockPool(8)
    tree = RadixTree(pool, BLOCK_SIZE)
    cache = PrefixCache(pool, tree, block_keys(BLOCK_SIZE), PathEnds(tree, time.monotonic, 0))
    for tokens, lifetime in (([0, 1, 2], Lifetime.PROCESS), ([0, 1], Lifetime.DURABLE)):
        held, _ = cache.admit(cache.match("", b""), len(tokens), 0, lifetime=lifetime)
        cache.release(held, pack_tokens(tokens), len(tokens))
    (leaf,) = tree.roots[0].children
    assert (leaf.num_tokens, leaf.lifetime) == (3, Lifetime.PROCESS)
    held, _ = cache.admit(cache.match("", b""), 3, 0, lifetime=Lifetime.DURABLE)
    cache.release(held, pack_tokens([0, 1, 2]), 3)
    assert leaf.lifetime is Lifetime.DURABLE
