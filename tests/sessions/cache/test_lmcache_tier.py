"""The shared tier over LMCache itself: a directory, and a Redis server of the test's own."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis_process import RedisProcess
from waiting import wait_until

from sessile.sessions.cache.lmcache_tier import LMCACHE_VERSION, lmcache_store
from sessile.sessions.cache.shared_config import SharedConfig
from sessile.sessions.cache.shared_tier import SharedTier
from sessile.sessions.cache.tiers import Entry, LoadOutcome
from sessile.sessions.errors import ConfigError

HIT, MISS, CORRUPT, LATE = LoadOutcome.HIT, LoadOutcome.MISS, LoadOutcome.CORRUPT, LoadOutcome.LATE
BLOCK_BYTES = 65_536
PATIENCE_S = 1.0

needs_lmcache = pytest.mark.skipif(
    importlib.util.find_spec("lmcache") is None, reason="LMCache is not installed (pip install 'sessile[lmcache]')"
)
needs_valkey = pytest.mark.skipif(
    importlib.util.find_spec("glide_sync") is None, reason="valkey-glide-sync is not installed (the lmcache extra)"
)
needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="there is no redis-server on this machine"
)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what LMCache imports


def key_of(number: int) -> bytes:
    return number.to_bytes(32, "little")


class Shared:
    """A tier over LMCache, and the plain way to use it."""

    def __init__(self, spec: dict[str, Any], namespace: str = "model-a") -> None:
        config = SharedConfig(adapter=spec, object_bytes=4 * BLOCK_BYTES, patience_s=PATIENCE_S)
        self.tier = SharedTier(lmcache_store(spec, namespace, PATIENCE_S), config, BLOCK_BYTES)

    def blocks_of(self, number: int) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(number)
        return tuple(rng.integers(0, 256, BLOCK_BYTES, dtype=np.uint8) for _ in range(4))

    def ready(self) -> Shared:
        self.until(lambda: not self.tier.stats().unavailable)
        return self

    def until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, self.tier.stats)

    def store(self, *numbers: int) -> list[bool]:
        taken = self.tier.store([Entry(key_of(n), self.blocks_of(n)) for n in numbers])
        self.tier.sync()
        return taken

    def load(self, *numbers: int, within_s: float = 10.0) -> list[LoadOutcome]:
        entries = [Entry(key_of(n), tuple(np.zeros(BLOCK_BYTES, np.uint8) for _ in range(4))) for n in numbers]
        outcomes = self.tier.load(entries, time.monotonic() + within_s)
        for number, entry, outcome in zip(numbers, entries, outcomes, strict=True):
            if outcome is HIT:
                assert all((a == b).all() for a, b in zip(entry.blocks, self.blocks_of(number), strict=True))
        return outcomes


@pytest.fixture
def make_shared() -> Iterator[Callable[..., Shared]]:
    made: list[Shared] = []

    def make(spec: dict[str, Any], **options: Any) -> Shared:
        made.append(Shared(spec, **options))
        return made[-1]

    yield make
    for shared in made:
        shared.tier.close()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    server = RedisProcess(tmp_path)
    yield server
    server.kill()


def spec_of(redis: RedisProcess) -> dict[str, Any]:
    return {"type": "valkey", "startup_nodes": redis.address, "num_workers": 2}


def directory_spec(path: Path) -> dict[str, Any]:
    return {"type": "fs_native", "base_path": str(path), "num_workers": 2}


# -- without LMCache ---------------------------------------------------------------------------------------------------


def test_resp_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="hangs its worker for ever") as caught:
        lmcache_store({"type": "resp", "host": "x"}, "model", 1.0)
    assert caught.value.field == "engine.shared"
    assert "valkey" in str(caught.value)


def test_an_adapter_that_was_not_tried_is_refused():
    with pytest.raises(ConfigError, match="'s3' was not tried"):
        lmcache_store({"type": "s3"}, "model", 1.0)


def test_without_lmcache_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "lmcache", None)
    with pytest.raises(ConfigError, match=r"sessile\[lmcache\]"):
        lmcache_store({"type": "fs_native", "base_path": "/tmp"}, "model", 1.0)


# -- with it -----------------------------------------------------------------------------------------------------------


@needs_lmcache
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("lmcache.v1.distributed.l2_adapters", "create_l2_adapter"),
        ("lmcache.v1.distributed.l2_adapters.config", "get_l2_adapter_config_class"),
        ("lmcache.v1.distributed.api", "ObjectKey"),
        ("lmcache.v1.memory_management", "TensorMemoryObj"),
        ("lmcache.v1.memory_management", "MemoryFormat"),
    ],
)
def test_canary_the_names_that_we_use_are_where_they_were(module: str, name: str):
    """LMCache's API moves between releases: this fails first, and says which name moved."""
    import lmcache

    assert lmcache.__version__ == LMCACHE_VERSION
    assert hasattr(importlib.import_module(module), name)


@needs_lmcache
def test_a_configuration_that_lmcache_refuses_is_named():
    with pytest.raises(ConfigError, match="base_path must be a non-empty string"):
        lmcache_store({"type": "fs_native"}, "model", 1.0)


@needs_lmcache
def test_a_shared_directory_is_bit_exact_over_a_restart(make_shared, tmp_path: Path):
    first = make_shared(directory_spec(tmp_path)).ready()
    assert first.store(*range(6)) == [True] * 6
    assert first.load(*range(6), 99) == [HIT] * 6 + [MISS]
    first.tier.close()
    again = make_shared(directory_spec(tmp_path)).ready()
    assert again.tier.contains([key_of(0), key_of(99)]) == [True, False]
    assert again.load(*range(6)) == [HIT] * 6


@needs_lmcache
def test_damaged_files_in_a_shared_directory_are_misses(make_shared, tmp_path: Path):
    shared = make_shared(directory_spec(tmp_path)).ready()
    shared.store(1)
    (path,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[1234] ^= 8
    for content in (bytes(flipped), whole[: len(whole) // 2], b"", whole[1:] + b"x"):
        path.write_bytes(content)
        assert shared.load(1)[0] in (MISS, CORRUPT), "it passed for the object"
    path.write_bytes(whole)
    assert shared.load(1) == [HIT]


@needs_lmcache
def test_another_model_in_the_same_directory(make_shared, tmp_path: Path):
    make_shared(directory_spec(tmp_path), namespace="model-a").ready().store(1)
    assert make_shared(directory_spec(tmp_path), namespace="model-b").ready().load(1) == [MISS]


@needs_lmcache
@needs_valkey
@needs_redis
def test_two_servers_over_one_redis(make_shared, redis: RedisProcess):
    first, second = make_shared(spec_of(redis)).ready(), make_shared(spec_of(redis)).ready()
    assert first.store(1, 2, 3) == [True] * 3
    assert second.load(1, 2, 3, 99) == [HIT, HIT, HIT, MISS]
    redis.command("FLUSHALL")
    assert second.load(1, 2) == [MISS, MISS]
    assert second.store(1) == [True]
    assert first.load(1) == [HIT]


@needs_lmcache
@needs_valkey
@needs_redis
def test_redis_stopped_by_a_signal_returns_within_the_deadline(make_shared, redis: RedisProcess):
    shared = make_shared(spec_of(redis)).ready()
    shared.store(1)
    redis.freeze()
    started = time.monotonic()
    assert shared.load(1, 2, within_s=0.2) == [LATE, LATE]
    waited = time.monotonic() - started
    redis.thaw()
    assert waited < PATIENCE_S, "the deadline did not end it, the adapter's own time limit did"
    shared.until(lambda: shared.tier.num_quarantined == 0)
    shared.until(lambda: shared.load(1) == [HIT])


@needs_lmcache
@needs_valkey
@needs_redis
def test_redis_killed_and_back(make_shared, redis: RedisProcess):
    shared = make_shared(spec_of(redis)).ready()
    shared.store(1)
    redis.kill()
    assert shared.load(1)[0] is not HIT
    for number in range(10, 14):
        shared.store(number)
    assert shared.tier.stats().unavailable
    redis.start()
    shared.until(lambda: shared.store(5) == [True] and shared.load(5) == [HIT])
    assert shared.load(1) == [MISS], "Redis came back empty"


@needs_lmcache
@needs_valkey
@needs_redis
def test_a_redis_that_comes_up_later(make_shared, redis: RedisProcess):
    redis.kill()
    shared = make_shared(spec_of(redis))
    assert shared.load(1) == [MISS]
    shared.until(lambda: "cannot connect" in shared.tier.stats().unavailable)
    redis.start()
    shared.ready()
    shared.until(lambda: shared.store(1) == [True] and shared.load(1) == [HIT])
