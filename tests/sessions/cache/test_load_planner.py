"""Plans of loads against the definition: each block from the fastest tier that has it, a prefix, where it pays."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from sessile.sessions.cache.cost_model import Calibration, CostModel
from sessile.sessions.cache.host_tier import HostTier, allocate_slab
from sessile.sessions.cache.load_planner import LoadPlanner, PlannedEntry
from sessile.sessions.cache.tiers import Tier

FAST = Calibration(prefill=(0.0, 1.0, 0.0), loads={"host": (0.0, 1e-9), "disk": (0.0, 2e-9), "shared": (0.0, 3e-9)})


class Holding(HostTier):
    """A tier of any kind that says it holds what it was made with."""

    def __init__(self, kind: Tier, held: set[bytes], blocks_per_entry: int = 1) -> None:
        super().__init__(allocate_slab(64, 64))
        self.kind, self.held, self.size = kind, held, blocks_per_entry

    @property
    def tier(self) -> Tier:
        return self.kind

    @property
    def blocks_per_entry(self) -> int:
        return self.size

    @property
    def answers_at_once(self) -> bool:
        return self.kind is not Tier.SHARED

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        return [key in self.held for key in keys]


def keys_of(count: int) -> list[bytes]:
    return [i.to_bytes(32, "little") for i in range(count)]


def planner_with(host: set[int], disk: set[int], shared: set[int], per_entry: int, calibration: Calibration = FAST):
    keys = keys_of(64)
    tiers = [
        Holding(Tier.HOST, {keys[i] for i in host}),
        Holding(Tier.DISK, {keys[i] for i in disk}),
        Holding(Tier.SHARED, {keys[i] for i in shared}, per_entry),
    ]
    return LoadPlanner(tiers, CostModel(calibration, 16, 100)), tiers


def test_the_picture_in_the_docstring():
    planner, tiers = planner_with({3, 4}, {4, 5}, {7}, 2)
    keys = keys_of(10)
    present = tiers[2].contains(planner.entry_keys(tiers[2], keys))
    assert present == [False, False, False, True, False]
    moves = planner.plan(keys, 3, 165, {Tier.SHARED: present})
    assert moves.num_blocks == 8
    assert moves.loads == {
        Tier.HOST: (PlannedEntry(keys[3], 3, 1, (3,)), PlannedEntry(keys[4], 4, 1, (4,))),
        Tier.DISK: (PlannedEntry(keys[5], 5, 1, (5,)),),
        Tier.SHARED: (PlannedEntry(keys[7], 6, 2, (6, 7)),),
    }
    assert moves.predicted.num_blocks == 8
    arrived = {(Tier.HOST, keys[3]), (Tier.HOST, keys[4]), (Tier.SHARED, keys[7])}
    assert moves.num_usable(arrived, 3) == 5, "the disk's block is late: what follows it is of no use"
    assert moves.num_usable(arrived | {(Tier.DISK, keys[5])}, 3) == 8


def test_a_tier_that_was_not_asked_has_nothing():
    planner, _ = planner_with(set(), set(), {1, 3}, 2)
    assert planner.plan(keys_of(4), 0, 65).loads == {}


def test_nothing_is_loaded_where_computing_is_faster():
    slow = Calibration(prefill=(0.0, 1e-6, 0.0), loads={"host": (0.0, 1.0), "disk": (0.0, 1.0)})
    planner, _ = planner_with({0, 1}, {2, 3}, set(), 2, slow)
    moves = planner.plan(keys_of(4), 0, 65)
    assert moves.loads == {} and moves.num_blocks == 0


SETS = st.sets(st.integers(0, 15))


@settings(max_examples=300, deadline=None)
@given(
    host=SETS,
    disk=SETS,
    shared=SETS,
    per_entry=st.sampled_from([1, 2, 4]),
    count=st.integers(0, 16),
    device=st.integers(0, 16),
)
def test_plans_are_the_definition(
    host: set[int], disk: set[int], shared: set[int], per_entry: int, count: int, device: int
):
    device = min(device, count)
    planner, tiers = planner_with(host, disk, shared, per_entry)
    keys = keys_of(count)
    present = tiers[2].contains(planner.entry_keys(tiers[2], keys))
    moves = planner.plan(keys, device, count * 16 + 5, {Tier.SHARED: present})

    def source(block: int) -> Tier | None:
        last = block // per_entry * per_entry + per_entry - 1
        if block in host:
            return Tier.HOST
        if block in disk:
            return Tier.DISK
        return Tier.SHARED if last in shared and last < count else None

    end = device
    while end < count and source(end) is not None:
        end += 1
    assert moves.num_blocks == end, "all of it pays on this machine"
    for tier, entries in moves.loads.items():
        for entry in entries:
            assert entry.key == keys[entry.first_block + entry.num_blocks - 1]
            assert entry.first_block % entry.num_blocks == 0
            assert set(entry.wanted) <= set(range(entry.first_block, entry.first_block + entry.num_blocks))
            assert all(source(block) is tier for block in entry.wanted)
    everything = {(tier, entry.key) for tier, entries in moves.loads.items() for entry in entries}
    assert moves.num_usable(everything, device) == end
    wanted = [block for entries in moves.loads.values() for entry in entries for block in entry.wanted]
    assert sorted(wanted) == list(range(device, end)), "each block comes from one place"
