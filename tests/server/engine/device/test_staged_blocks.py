"""Blocks of a GPU's pool on their way to and from the tiers below, beside the steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from fake_device import FakeDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from summing_model import SummingModel

from sessile.server.engine.device.staged_blocks import StagedBlocks
from sessile.server.engine.kv_cache import KVCache
from sessile.server.engine.pool_blocks import HostBlocks, PoolBlocks, write_blocks
from sessile.sessions.cache.tiers import Block

LAYOUT = SummingModel().kv_layout(16)
NUM_BLOCKS = 12


class Rig:
    """A pool of random bytes with buffers of two blocks."""

    def __init__(self) -> None:
        self.device = FakeDevice()
        self.kv_cache = KVCache(LAYOUT, NUM_BLOCKS, self.device.torch_device)
        self.kv_cache.pool.copy_(torch.randn(self.kv_cache.pool.shape))
        self.pool = StagedBlocks(self.kv_cache, self.device, staging_bytes=2 * LAYOUT.block_bytes)
        self.rows = self.kv_cache.rows()

    def overwrite(self, blocks: list[int]) -> None:
        """What a later step does."""
        self.device.put(lambda: self.kv_cache.pool.index_fill_(0, torch.tensor(blocks), 9.0))


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.pool.close()


def copied(pool: PoolBlocks, blocks: list[int]) -> dict[int, bytes]:
    """What arrives, by index; filled later."""
    found: dict[int, bytes] = {}

    def use(start: int, contents: list[Block]) -> None:
        found.update({start + place: content.tobytes() for place, content in enumerate(contents)})

    pool.copy_out(blocks, use)
    return found


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_leaves_is_what_was_there_though_a_later_step_overwrites_it(rig: Rig, count: int) -> None:
    blocks = [7, 3, 11, 0, 5][:count]
    wanted = [rig.rows[block].tobytes() for block in blocks]
    found = copied(rig.pool, blocks)
    rig.overwrite(blocks)
    rig.pool.settle()
    rig.device.finish_steps()
    assert [found[place] for place in range(count)] == wanted
    assert (rig.kv_cache.pool[blocks] == 9.0).all()


def test_what_leaves_comes_after_the_steps_that_were_launched(rig: Rig) -> None:
    rig.overwrite([4])
    found = copied(rig.pool, [4])
    rig.pool.settle()
    assert (np.frombuffer(found[0], dtype=np.float32) == 9.0).all()


def test_the_bus_is_crossed_in_one_copy_a_piece_beside_the_steps(rig: Rig) -> None:
    rig.device.log.clear()
    copied(rig.pool, [7, 3, 11, 0, 5])
    rig.pool.settle()
    sizes = [int(entry.split()[1]) for entry in rig.device.log if entry.startswith("copy ")]
    assert sorted(size for size in sizes if size >= LAYOUT.block_bytes) == [
        LAYOUT.block_bytes, 2 * LAYOUT.block_bytes, 2 * LAYOUT.block_bytes
    ]  # fmt: skip
    assert rig.device.log.count("copies begin") == 3
    assert "wait for copies" not in rig.device.log, "no step waits for the bus"


def test_a_step_is_not_held_by_a_copy_that_is_under_way(rig: Rig) -> None:
    """The thread that stores is stopped; two pieces are on their way, and steps go on."""
    goes_on = threading.Event()

    def waits(start: int, blocks: list[Block]) -> None:
        goes_on.wait(30.0)

    rig.pool.copy_out([1, 2, 3], waits)
    done: list[int] = []
    rig.device.put(lambda: done.append(1))
    rig.device.record().wait()
    assert done == [1]
    goes_on.set()


def test_a_store_that_raises_keeps_no_buffer(rig: Rig) -> None:
    def raises(start: int, blocks: list[Block]) -> None:
        raise RuntimeError("a tier broke its promise")

    for _ in range(5):
        rig.pool.copy_out([1, 2, 3], raises)
    rig.pool.settle()


def test_what_lands_is_behind_the_steps_that_were_launched(rig: Rig) -> None:
    blocks = [2, 9]
    rig.overwrite(blocks)  # a row that was launched for nothing may still write there
    contents = [np.full(LAYOUT.block_bytes, value, dtype=np.uint8) for value in (1, 2)]
    write_blocks(rig.pool, blocks, contents)
    assert np.array_equal(rig.rows[blocks], np.stack(contents))


def test_only_what_came_lands(rig: Rig) -> None:
    before = rig.rows.copy()
    with rig.pool.landing([2, 9]) as landing:
        for buffer in landing.buffers:
            buffer[:] = 5
        landing.land(1)
    assert (rig.rows[2] == 5).all()
    assert np.array_equal(rig.rows[9], before[9])


def test_reads_that_hang_do_not_keep_others_from_landing(rig: Rig) -> None:
    hanging = [rig.pool.landing([block]) for block in range(6)]
    for landing in hanging:
        landing.__enter__()
    write_blocks(rig.pool, [8], [np.full(LAYOUT.block_bytes, 3, dtype=np.uint8)])
    assert (rig.rows[8] == 3).all()
    for landing in hanging:
        landing.__exit__(None, None, None)


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["copy out", "write", "read", "step"]),
            st.lists(st.integers(0, NUM_BLOCKS - 1), min_size=1, max_size=6, unique=True),
        ),
        max_size=12,
    )
)
def test_any_order_is_as_in_memory(steps: list[tuple[str, list[int]]]) -> None:
    rig = Rig()
    plain = HostBlocks(rig.rows.copy())
    arrived: list[tuple[dict[int, bytes], dict[int, bytes]]] = []
    for number, (what, blocks) in enumerate(steps):
        contents = [np.full(LAYOUT.block_bytes, number, dtype=np.uint8) for _ in blocks]
        if what == "copy out":
            arrived.append((copied(rig.pool, blocks), copied(plain, blocks)))
        elif what == "write":
            for pool in (rig.pool, plain):
                write_blocks(pool, blocks, contents)
        elif what == "read":
            found = [[block.tobytes() for piece in pool.read(blocks) for block in piece] for pool in (rig.pool, plain)]
            assert found[0] == found[1]
        else:
            rig.overwrite(blocks)
            write_blocks(
                plain, blocks, [np.full(LAYOUT.block_bytes // 4, 9.0, np.float32).view(np.uint8)] * len(blocks)
            )
    rig.pool.close()
    rig.device.synchronize()
    assert all(mine == theirs for mine, theirs in arrived)
    (rows,) = plain.read(range(NUM_BLOCKS))
    assert np.array_equal(rig.rows, np.stack(rows))
