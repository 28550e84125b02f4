"""The radix tree: reuse to the token, the order of eviction, and that nothing scans the whole tree."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from cache_keys import block_keys

from sessile.sessions.cache.block_pool import BlockPool
from sessile.sessions.cache.path_ends import PathEnds
from sessile.sessions.cache.prefix_cache import PrefixCache
from sessile.sessions.cache.radix_tree import RadixTree
from sessile.sessions.cache.token_key import common_prefix_tokens, pack_tokens, unpack_tokens

BLOCK_SIZE = 16


def make(num_blocks: int = 1000) -> tuple[BlockPool, RadixTree, PrefixCache]:
    pool = BlockPool(num_blocks)
    tree = RadixTree(pool, BLOCK_SIZE)
    return pool, tree, PrefixCache(pool, tree, block_keys(BLOCK_SIZE), PathEnds(tree, time.monotonic, 0))


def cache_tokens(cache: PrefixCache, tokens: list[int], salt: str = "") -> None:
    match = cache.match(salt, pack_tokens(tokens[:-1]))
    admitted = cache.admit(match, len(tokens), 0)
    assert admitted is not None
    held, _ = admitted
    cache.release(held, pack_tokens(tokens[held.num_cached_tokens :]), len(tokens))


def matched(cache: PrefixCache, tokens: list[int], salt: str = "") -> int:
    return cache.match(salt, pack_tokens(tokens)).num_tokens


def test_keys_order_like_token_sequences() -> None:
    rng = random.Random(5)
    sequences = [[rng.randrange(70000) for _ in range(rng.randrange(6))] for _ in range(300)]
    assert sorted(sequences) == [unpack_tokens(key) for key in sorted(map(pack_tokens, sequences))]
    for left, right in itertools.pairwise(sequences):
        expected = 0
        while expected < min(len(left), len(right)) and left[expected] == right[expected]:
            expected += 1
        assert common_prefix_tokens(pack_tokens(left), pack_tokens(right)) == expected


@pytest.mark.parametrize("shared", [1, 15, 16, 17, 240, 250])
def test_reuse_is_to_the_token(shared: int) -> None:
    """vLLM #54607: a shared prompt that ends inside a block hit nothing."""
    _, _, cache = make()
    first = list(range(300))
    cache_tokens(cache, first)
    assert matched(cache, first[:shared] + [9999] * 40) == shared


def test_tenants_never_share() -> None:
    _, _, cache = make()
    cache_tokens(cache, list(range(100)), salt="one")
    assert matched(cache, list(range(100)), salt="two") == 0
    assert matched(cache, list(range(100)), salt="one") == 100


def test_the_tail_of_a_path_goes_first() -> None:
    """vLLM #50422: eviction in mid-chain made the rest unreachable."""
    _, tree, cache = make(64)
    tokens = list(range(10 * BLOCK_SIZE))
    cache_tokens(cache, tokens)
    for left in range(9, -1, -1):
        assert tree.evict(1) == 1
        assert matched(cache, tokens) == left * BLOCK_SIZE


def test_the_least_recently_used_branch_goes_first() -> None:
    _, tree, cache = make(64)
    shared = list(range(4 * BLOCK_SIZE))
    old, new = shared + [1000] * 32, shared + [2000] * 32
    cache_tokens(cache, old)
    cache_tokens(cache, new)
    cache_tokens(cache, [*old, 1])  # used again: now `new` is the older one
    tree.evict(2)
    assert matched(cache, new) == len(shared)
    assert matched(cache, old) == len(old)


def test_a_longer_conversation_takes_the_place_of_its_half_full_tail() -> None:
    pool, tree, cache = make(64)
    tokens = list(range(20))
    cache_tokens(cache, tokens)
    cache_tokens(cache, [*tokens, *range(500, 540)])
    assert tree.num_blocks == 4  # 60 tokens; the half-full block of the first turn is gone
    assert pool.num_free == 60


def test_match_and_evict_do_not_scan_the_tree() -> None:
    _, tree, cache = make(60000)
    shared = list(range(64))
    rng = random.Random(7)
    branches = [shared + [rng.randrange(50000) for _ in range(80)] for _ in range(3000)]
    for branch in branches:
        cache_tokens(cache, branch)

    before = tree.nodes_visited
    for branch in branches[:100]:
        assert matched(cache, branch) == len(branch)
    assert (tree.nodes_visited - before) / 100 <= 6, "a match visits the nodes of its own path only"

    before = tree.nodes_visited
    assert tree.evict(500) == 500
    assert tree.nodes_visited - before <= 501, "an eviction visits the leaves that it gives up only"


def test_running_turns_grow_one_edge_not_one_node_a_block() -> None:
    _, tree, cache = make()
    admitted = cache.admit(cache.match("", b""), 1, 0)
    assert admitted is not None
    held, _ = admitted
    tokens: list[int] = []
    for step in range(40 * BLOCK_SIZE):
        tokens.append(step)
        assert cache.grow(held, len(tokens))
        cache.commit(held, pack_tokens(tokens[held.num_cached_tokens :]), len(tokens))
    before = tree.nodes_visited
    assert matched(cache, tokens) == len(tokens)
    assert tree.nodes_visited - before <= 2
