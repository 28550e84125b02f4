"""Engines that share a store: what one computed the other loads, and a store in trouble is nobody's trouble."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from checksum_model import ChecksumModel, continuation, prompt
from memory_store import MemoryStore
from staged_pool import staged_pools

from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.lower_tiers import TierSetup, open_lower_tiers
from sessile.server.engine.messages import SubmitTurn, TokensBySource, TurnOutput
from sessile.server.engine.sampling_params import SamplingParams
from sessile.sessions.cache.cost_model import Calibration
from sessile.sessions.cache.host_tier import allocate_slab
from sessile.sessions.cache.keys import KVFingerprint
from sessile.sessions.cache.lmcache_tier import lmcache_store
from sessile.sessions.cache.lower_tiers import LowerTiers
from sessile.sessions.cache.shared_config import SharedConfig
from sessile.sessions.cache.shared_tier import SharedTier
from sessile.sessions.cache.tiers import Tier
from sessile.sessions.errors import ConfigError

BLOCK = 16
BLOCK_BYTES = 2 * BLOCK * 2 * 4
PER_ENTRY = 4
COMPUTING_IS_DEAR = Calibration(prefill=(1.0, 1.0, 0.0), loads={"host": (1e-6, 1e-12)})


@pytest.fixture(scope="module", params=["in memory", "staged"], autouse=True)
def pool(request: pytest.FixtureRequest) -> Iterator[str]:
    """A pool in this machine's memory, or a GPU's that is not there."""
    with staged_pools() if request.param == "staged" else nullcontext():
        yield request.param


def open_tiers(
    stores: list[MemoryStore], objects: dict[bytes, bytes], host_blocks: int, fingerprint: KVFingerprint
) -> LowerTiers:
    """Tiers over a store of ``objects``, which is appended to ``stores`` when it is connected."""

    def connect() -> MemoryStore:
        stores.append(MemoryStore(objects))
        return stores[-1]

    config = SharedConfig(adapter={}, object_bytes=PER_ENTRY * BLOCK_BYTES, patience_s=0.3)
    slab = allocate_slab(host_blocks * BLOCK_BYTES, BLOCK_BYTES) if host_blocks else None
    return LowerTiers(slab, None, SharedTier(connect, config, fingerprint.block_bytes))


class Engine:
    """An engine core over a shared store, stepped until its turns end."""

    def __init__(
        self,
        open_tiers: Callable[[KVFingerprint], LowerTiers],
        num_blocks: int = 100,
        weights: str = "w",
    ) -> None:
        self.core = EngineCore(
            EngineConfig(kv_memory_bytes=num_blocks * BLOCK_BYTES, max_sequences=4),
            ChecksumModel(),
            torch.device("cpu"),
            itertools.count().__next__,
            weights,
            TierSetup(self.keep(open_tiers), lambda model, kv_cache, tiers: COMPUTING_IS_DEAR),
        )
        self.names = itertools.count()

    def keep(self, open_tiers: Callable[[KVFingerprint], LowerTiers]) -> Callable[[KVFingerprint], LowerTiers]:
        def opened(fingerprint: KVFingerprint) -> LowerTiers:
            self.tiers = open_tiers(fingerprint)
            return self.tiers

        return opened

    def ready(self) -> Engine:
        assert self.tiers.shared is not None
        limit = time.monotonic() + 30
        while not self.tiers.shared.is_usable:
            assert time.monotonic() < limit, "the store is not reached"
            time.sleep(0.01)
        return self

    def complete(self, prompt: list[int], salt: str = "") -> TokensBySource:
        """Run one turn, check its tokens, and return where its prompt came from."""
        turn_id = str(next(self.names))
        params = SamplingParams(temperature=0.0, max_tokens=3)
        self.core.submit(SubmitTurn(turn_id=turn_id, token_ids=prompt, sampling=params, cache_salt=salt))
        tokens: list[int] = []
        last: TurnOutput | None = None
        limit = time.monotonic() + 30
        while self.core.has_work:
            assert time.monotonic() < limit, "the engine wedged"
            if self.core.only_waits:
                time.sleep(0.0005)  # a real thread loads
            for output in self.core.step():
                tokens += output.token_ids
                last = output
            self.core.check_integrity()
        assert tokens == continuation(prompt, 3)
        assert last is not None and last.usage is not None
        assert last.usage.tokens_by_source.total == len(prompt)
        assert self.tiers.shared is not None
        self.tiers.shared.sync()
        return last.usage.tokens_by_source


class Servers:
    """Engines over one store."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.stores: list[MemoryStore] = []
        self.engines: list[Engine] = []

    def start(self, host_blocks: int = 0, **options: object) -> Engine:
        self.engines.append(Engine(partial(open_tiers, self.stores, self.objects, host_blocks), **options))
        return self.engines[-1].ready()


@pytest.fixture
def servers() -> Iterator[Servers]:
    some = Servers()
    yield some
    for engine in some.engines:
        engine.core.close()


def test_the_second_server_serves_the_firsts_prefix(servers: Servers) -> None:
    first, second = servers.start(), servers.start()
    assert first.complete(prompt(300)).computed == 300
    sources = second.complete([*prompt(300), 1, 2, 3])
    assert sources.shared == 256, "whole entries of four blocks: 16 of the 18 blocks"
    assert sources.computed == 303 - 256
    again = second.complete([*prompt(300), 1, 2, 3])
    assert again.device == 302 and again.shared == 0


def test_what_the_device_has_of_an_entry_goes_to_scratch(servers: Servers) -> None:
    first, second = servers.start(), servers.start()
    second.complete(prompt(100))  # 6 blocks, an entry and a half
    first.complete(prompt(400))
    sources = second.complete(prompt(400))
    assert sources.device == 96
    assert sources.shared == 384 - 96


def test_a_long_prefix_is_shared_over_several_turns(servers: Servers, pool: str) -> None:
    """Not all at once: copying holds up the step. From a GPU's pool another thread copies."""
    first, second = servers.start(num_blocks=200), servers.start(num_blocks=200)
    long = prompt(1600)  # 25 entries, 16 at once
    first.complete(long)
    assert len(servers.objects) == (16 if pool == "in memory" else 25)
    first.complete([*long, 1])
    assert len(servers.objects) == 25
    assert second.complete([*long, 2]).shared == 1600


def test_what_was_loaded_is_not_stored_again(servers: Servers) -> None:
    first, second = servers.start(), servers.start()
    first.complete(prompt(300))
    second.complete(prompt(300))
    assert second.tiers.stats()[Tier.SHARED].stored == 0


def test_tenants_and_models_share_nothing(servers: Servers) -> None:
    first, second, other = servers.start(), servers.start(), servers.start(weights="other")
    first.complete(prompt(300), salt="one")
    assert second.complete(prompt(300), salt="two").computed == 300
    assert other.complete(prompt(300), salt="one").computed == 300
    assert second.complete(prompt(300), salt="one").shared == 256


def test_a_damaged_object_is_computed_and_replaced(servers: Servers) -> None:
    first, second, third = servers.start(), servers.start(), servers.start()
    first.complete(prompt(300))
    key = sorted(servers.objects)[1]
    servers.objects[key] = servers.objects[key][:100] + b"\xff" + servers.objects[key][101:]
    sources = second.complete(prompt(300))
    assert sources.shared % 64 == 0 and sources.shared < 256
    assert second.tiers.stats()[Tier.SHARED].corrupt == 1
    assert third.complete(prompt(300)).shared == 256, "the second stored it again"


def test_a_store_that_hangs_lets_turns_go_on(servers: Servers) -> None:
    first, second = servers.start(), servers.start()
    first.complete(prompt(300))
    servers.stores[1].hangs = True
    for seed in range(4):
        assert second.complete([*prompt(300), seed]).shared == 0
    assert second.tiers.shared is not None
    assert not second.tiers.shared.is_usable
    assert second.tiers.stats()[Tier.SHARED].unavailable


def test_a_store_that_refuses_lets_turns_go_on(servers: Servers) -> None:
    engine = servers.start()
    servers.stores[0].refuses = True
    for seed in range(4):
        assert engine.complete(prompt(300, seed)).computed > 250
    assert "no such server" in engine.tiers.stats()[Tier.SHARED].unavailable


@pytest.mark.parametrize("text", ["{", "[]", '{"type": "resp"}', '{"type": "s3"}', "{}"])
def test_a_shared_tier_that_cannot_work_names_its_key(text: str) -> None:
    fingerprint = KVFingerprint("w", "bf16", "layout", BLOCK, BLOCK_BYTES, "rope")
    with pytest.raises(ConfigError) as caught:
        open_lower_tiers(EngineConfig(shared=text, host_memory_bytes=0), fingerprint)
    assert caught.value.field == "engine.shared"


@pytest.mark.skipif(find_spec("lmcache") is None, reason="LMCache is not installed (pip install 'sessile[lmcache]')")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_two_servers_over_a_directory_that_lmcache_keeps(tmp_path: Path) -> None:
    spec = {"type": "fs_native", "base_path": str(tmp_path), "num_workers": 1}

    def open_over_lmcache(fingerprint: KVFingerprint) -> LowerTiers:
        config = SharedConfig(adapter=spec, object_bytes=PER_ENTRY * BLOCK_BYTES)
        connect = lmcache_store(spec, fingerprint.digest().hex()[:32], config.patience_s)
        return LowerTiers(None, None, SharedTier(connect, config, fingerprint.block_bytes))

    engines = [Engine(open_over_lmcache).ready() for _ in range(2)]
    try:
        assert engines[0].complete(prompt(300)).computed == 300
        assert engines[1].complete(prompt(300)).shared == 256
    finally:
        for engine in engines:
            engine.core.close()
