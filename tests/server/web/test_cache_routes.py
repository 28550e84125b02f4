"""``/v1/cache/…``."""

from __future__ import annotations

import pytest
from observed_turns import run_turn

from sessile.server.identity.api_key import Scope
from sessile.server.identity.gate import Identity


async def test_hit_rate_beside_what_was_possible(client, stage):
    run_turn(stage.observatory, "a")
    run_turn(stage.observatory, "b", tenant="acme", conversation="s2")
    rate = (await client.get("/v1/cache/hit-rate")).json()
    assert (rate["prompt_tokens"], rate["cached_tokens"], rate["reusable_tokens"]) == (200, 60, 140)
    assert (rate["hit_rate"], rate["reusable_rate"]) == (0.3, 0.7)
    assert sum(rate["by_source"].values()) == 200
    assert sum(rate["missed"].values()) == rate["reusable_tokens"] - rate["cached_tokens"]
    assert set(rate["windows"]) == {"1m", "5m", "1h", "start"}
    assert rate["windows"]["1m"] == rate["windows"]["start"]
    assert rate["tenants"]["acme"]["5m"]["prompt_tokens"] == 100
    assert [(of["session"], of["tenant"]) for of in rate["sessions"]] == [("s2", "acme"), ("s1", "")]
    assert set(rate["sessions"][0]["windows"]) == {"1m", "5m", "1h", "start"}
    assert rate["sessions"][0]["windows"]["5m"] == rate["sessions"][0]["reuse"]
    assert rate["models"][stage.observatory.model]["1h"]["turns"] == 2


async def test_a_tenant_sees_its_own_alone(client, stage):
    run_turn(stage.observatory, "a")
    run_turn(stage.observatory, "b", tenant="acme", conversation="s2")
    headers = {"x-sessile-tenant": "acme"}
    rate = (await client.get("/v1/cache/hit-rate", headers=headers)).json()
    assert rate["prompt_tokens"] == 100
    assert list(rate["tenants"]) == ["acme"]
    assert [of["session"] for of in rate["sessions"]] == ["s2"]
    misses = (await client.get("/v1/cache/misses", headers=headers)).json()
    assert [miss["session"] for miss in misses["misses"]] == ["s2"]
    assert misses["by_rule"] == {}
    assert (await client.get("/v1/cache/tree", headers=headers)).json()["nodes"] == []


@pytest.mark.parametrize(("scopes", "seen"), [({Scope.METRICS}, 100), ({Scope.ADMIN}, 200)])
async def test_a_tenants_key_sees_its_own_alone_without_naming_it(client, stage, monkeypatch, scopes, seen):
    run_turn(stage.observatory, "a")
    run_turn(stage.observatory, "b", tenant="acme", conversation="s2")
    identity = Identity("key", "acme", frozenset(scopes))
    monkeypatch.setattr(stage.gate, "identify", lambda *headers: identity)
    assert (await client.get("/v1/cache/hit-rate")).json()["prompt_tokens"] == seen


async def test_misses_say_rule_cost_and_remedy(client, stage):
    run_turn(stage.observatory, "a")
    answer = (await client.get("/v1/cache/misses")).json()
    (miss,) = answer["misses"]
    assert (miss["rule"], miss["lost_tokens"], miss["session"]) == ("PL803", 40, "s1")
    assert miss["remedy"]
    assert miss["missed"]["evicted"] == 40
    assert answer["by_rule"] == {"PL803": 1}
    assert answer["lost_tokens_by_kind"] == {"serving": 40}


async def test_tree_and_tiers(client):
    tree = (await client.get("/v1/cache/tree")).json()
    assert (tree["nodes"][0]["tokens"], tree["block_tokens"]) == (32, 16)
    (device,) = (await client.get("/v1/cache/tiers")).json()["tiers"]
    assert (device["tier"], device["capacity_bytes"]) == ("device", 0)
    assert (await client.get("/v1/cache/tree?limit=0")).status_code == 400
