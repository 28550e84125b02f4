"""Whose entries go first: against a plain list, in the host tier, and in the disk tier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sessile.sessions.cache.disk.config import DiskConfig
from sessile.sessions.cache.disk.disk_tier import DiskTier
from sessile.sessions.cache.host_tier import HostTier
from sessile.sessions.cache.keys import KVFingerprint
from sessile.sessions.cache.lower_tiers import LowerTiers
from sessile.sessions.cache.tenant_quota import TenantQuota
from sessile.sessions.cache.tiers import Entry

BLOCK_BYTES = 4096


def entry(number: int, tenant: str) -> Entry:
    return Entry(number.to_bytes(32, "little"), (np.full(BLOCK_BYTES, number, dtype=np.uint8),), tenant)


STEPS = st.lists(
    st.tuples(st.sampled_from(["used", "touch", "gone"]), st.integers(0, 7), st.sampled_from(["", "a", "b"])),
    max_size=60,
)


@given(steps=STEPS, most=st.integers(0, 4))
def test_it_is_what_a_list_says(steps: list[tuple[str, int, str]], most: int) -> None:
    quota = TenantQuota(most)
    order: list[tuple[bytes, str]] = []
    for what, number, tenant in steps:
        key = bytes([number])
        owner = next((owner for each, owner in order if each == key), None)
        if what == "used":
            quota.used(key, tenant)
            owner = owner or tenant
        elif what == "touch":
            quota.touch(key)
        else:
            quota.gone(key)
        if what == "used" and not tenant:
            continue
        order = [(each, of) for each, of in order if each != key]
        if owner and what != "gone":
            order.append((key, owner))
        over = {name for name in "ab" if sum(of == name for _, of in order) > most}
        gone_first = list(quota.go_first())
        assert sorted(gone_first) == sorted(each for each, of in order if of in over)
        for name in over:
            assert [each for each in gone_first if (each, name) in order] == [each for each, of in order if of == name]
        assert all(quota.tenant_of(each) == of for each, of in order)


@given(steps=STEPS)
def test_without_a_quota_it_still_knows_whose_is_whose(steps: list[tuple[str, int, str]]) -> None:
    quota: TenantQuota[str] = TenantQuota()
    owners: dict[bytes, str] = {}
    for what, number, tenant in steps:
        key = bytes([number])
        if what == "used":
            quota.used(key, tenant)
            if tenant:
                owners.setdefault(key, tenant)
        elif what == "touch":
            quota.touch(key)
        else:
            quota.gone(key)
            owners.pop(key, None)
        assert not list(quota.go_first())
        assert {n: quota.tenant_of(bytes([n])) for n in range(8)} == {n: owners.get(bytes([n])) for n in range(8)}


def test_what_a_start_finds_on_disk_counts_against_its_tenant(tmp_path: Path) -> None:
    """Also if there was no quota when it was stored, and after the log was rewritten."""
    fingerprint = KVFingerprint("w", "bf16", "layout", 16, BLOCK_BYTES, "rope")
    free = DiskConfig(path=str(tmp_path), quota_bytes=6 * BLOCK_BYTES)
    tier = DiskTier(free, fingerprint)
    tier.store([entry(1, "modest")])
    tier.store([entry(n, "greedy") for n in range(2, 7)])
    tier.close()
    DiskTier(free, fingerprint).close()  # rewrites the log
    bounded = DiskConfig(path=str(tmp_path), quota_bytes=6 * BLOCK_BYTES, tenant_quota_bytes=3 * BLOCK_BYTES)
    again = DiskTier(bounded, fingerprint)
    again.store([entry(10, "modest"), entry(11, "modest")])
    again.flush()
    there = [n for n in (1, 2, 3, 4, 5, 6, 10, 11) if again.contains([entry(n, "").key])[0]]
    assert there == [1, 4, 5, 6, 10, 11], "the greedy tenant's oldest went, not the oldest of all"
    again.check_integrity()
    again.close()


def test_a_tenant_is_known_behind_the_host_tier_too(tmp_path: Path) -> None:
    """Blocks that memory gives up count against their tenant on disk, whether or not memory has a quota."""
    fingerprint = KVFingerprint("w", "bf16", "layout", 16, BLOCK_BYTES, "rope")
    config = DiskConfig(path=str(tmp_path), quota_bytes=6 * BLOCK_BYTES, tenant_quota_bytes=3 * BLOCK_BYTES)
    disk = DiskTier(config, fingerprint)
    lower = LowerTiers(np.zeros((1, BLOCK_BYTES), dtype=np.uint8), disk)
    for number, tenant in ((1, "modest"), *((n, "greedy") for n in range(2, 10))):
        lower.demote(entry(number, "").key, entry(number, "").blocks[0], tenant)
        disk.flush()
    assert disk.contains([entry(n, "").key for n in range(1, 9)]) == [n in (1, 4, 5, 6, 7, 8) for n in range(1, 9)]
    lower.close()


def test_the_host_tier_gives_up_a_greedy_tenants_blocks_first() -> None:
    moved: list[tuple[int, str]] = []
    slab = np.zeros((6, BLOCK_BYTES), dtype=np.uint8)
    tier = HostTier(slab, lambda each: moved.append((each.key[0], each.tenant)), TenantQuota(3))
    tier.store([entry(1, "modest"), *(entry(n, "greedy") for n in range(2, 10))])
    assert moved == [(2, "greedy"), (3, "greedy"), (4, "greedy")]
    assert tier.contains([entry(1, "").key]) == [True], "it is the oldest, and its tenant has one block"
    tier.check_integrity()


def test_the_disk_tier_gives_up_a_greedy_tenants_blocks_first(tmp_path: Path) -> None:
    fingerprint = KVFingerprint("w", "bf16", "layout", 16, BLOCK_BYTES, "rope")
    config = DiskConfig(path=str(tmp_path), quota_bytes=6 * BLOCK_BYTES, tenant_quota_bytes=3 * BLOCK_BYTES)
    tier = DiskTier(config, fingerprint)
    for number, tenant in ((1, "modest"), *((n, "greedy") for n in range(2, 10))):
        tier.store([entry(number, tenant)])
        tier.flush()
    assert tier.contains([entry(n, "").key for n in range(1, 10)]) == [n in (1, 5, 6, 7, 8, 9) for n in range(1, 10)]
    tier.check_integrity()
    tier.close()
    again = DiskTier(config, fingerprint)
    assert again.contains([entry(1, "").key]) == [True]
    again.store([entry(n, "greedy") for n in range(5, 12)])
    again.flush()
    assert again.contains([entry(1, "").key]) == [True], "what is stored again has its tenant again"
    again.close()
