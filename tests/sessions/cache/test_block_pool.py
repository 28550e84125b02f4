"""The block pool against a plain dict of reference counts."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sessile.sessions.cache.block_pool import BlockPool, PoolExhausted

NUM_BLOCKS = 7


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.counts: dict[int, int] = {}

    @rule(count=st.integers(0, NUM_BLOCKS + 2))
    def allocate(self, count: int) -> None:
        free = NUM_BLOCKS - len(self.counts)
        if count > free:
            with pytest.raises(PoolExhausted):
                self.pool.allocate(count)
            return
        blocks = self.pool.allocate(count)
        assert len(set(blocks)) == count
        assert not set(blocks) & set(self.counts)
        self.counts.update(dict.fromkeys(blocks, 1))

    @precondition(lambda self: self.counts)
    @rule(pick=st.randoms(use_true_random=False))
    def retain(self, pick) -> None:
        block = pick.choice(sorted(self.counts))
        self.pool.retain([block])
        self.counts[block] += 1

    @precondition(lambda self: self.counts)
    @rule(pick=st.randoms(use_true_random=False))
    def release(self, pick) -> None:
        block = pick.choice(sorted(self.counts))
        self.pool.release([block])
        self.counts[block] -= 1
        if not self.counts[block]:
            del self.counts[block]

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_free == NUM_BLOCKS - len(self.counts)
        assert {b: self.pool.refcount(b) for b in range(NUM_BLOCKS) if self.pool.refcount(b)} == self.counts


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_free_block_is_neither_retained_nor_released() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="free"):
        pool.retain([1])
    with pytest.raises(ValueError, match="free"):
        pool.release([1])


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        BlockPool(0)
