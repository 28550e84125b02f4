"""Counters of what each tenant got."""

from __future__ import annotations

from sessile.server.engine.scheduler.fair_shares import FORGET_ABOVE, FairShares


def test_idle_time_gains_no_credit() -> None:
    shares = FairShares({})
    shares.join("busy")
    for _ in range(10):
        shares.choose("busy")
        shares.charge("busy", 100)
    shares.join("new")
    assert shares.served("new") == shares.served("busy")


def test_what_was_served_beyond_others_is_not_forgotten_by_a_pause() -> None:
    shares = FairShares({})
    shares.join("other")
    shares.join("greedy")
    shares.charge("greedy", 500)
    shares.leave("greedy")
    shares.join("greedy")
    assert shares.served("greedy") - shares.served("other") == 500


def test_it_is_forgotten_when_the_others_have_had_as_much() -> None:
    shares = FairShares({})
    for tenant in ("greedy", "other"):
        shares.join(tenant)
    shares.charge("greedy", 500)
    shares.leave("greedy")
    for _ in range(6):
        shares.charge("other", 100)
    shares.join("greedy")
    shares.join("new")
    assert shares.served("greedy") == shares.served("new")


def test_nobody_starves_behind_tenants_that_are_always_new() -> None:
    """Each newcomer starts at the fair level, which rises with what the others before it were served."""
    shares = FairShares({})
    shares.join("old")
    shares.charge("old", 1000)
    served = 0
    while True:
        newcomer = str(served)
        shares.join(newcomer)
        if shares.served(newcomer) >= shares.served("old"):
            break
        shares.choose(newcomer)
        shares.charge(newcomer, 10)
        shares.leave(newcomer)
        served += 10
    assert served <= 2 * 1000


def test_memory_follows_those_that_are_active() -> None:
    shares = FairShares({})
    shares.join("stays")
    for index in range(5 * FORGET_ABOVE):
        shares.join(str(index))
        shares.choose(str(index))
        shares.charge(str(index), 3)
        shares.choose("stays")
        shares.charge("stays", 3)
        shares.leave(str(index))
    assert len(shares._served) < 2 * FORGET_ABOVE


def test_what_is_taken_back_leaves_the_fair_level_where_it_was() -> None:
    shares = FairShares({})
    shares.join("old")
    for _ in range(100):
        shares.charge("old", 2)
        shares.charge("old", -1)
    shares.join("new")
    assert shares.served("new") == shares.served("old") == 100


def test_a_token_counts_by_the_weight_of_its_tenant() -> None:
    shares = FairShares({"gold": 4.0, "trial": 0.5})
    for tenant in ("gold", "trial", "other"):
        shares.join(tenant)
    for tenant in ("gold", "trial", "other"):
        shares.charge(tenant, 100)
    assert [shares.served(tenant) for tenant in ("gold", "trial", "other")] == [25.0, 200.0, 100.0]


def test_the_fair_level_rises_as_fast_as_what_a_waiting_tenant_of_any_weight_would_have() -> None:
    shares = FairShares({"gold": 4.0})
    for tenant in ("gold", "other"):
        shares.join(tenant)
    for _ in range(100):
        for tenant, tokens in (("gold", 40), ("other", 10)):
            shares.charge(tenant, tokens)
    shares.join("new")
    assert shares.served("new") == shares.served("gold") == shares.served("other")
