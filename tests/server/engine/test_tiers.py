"""The engine with tiers below the pool, on the checksum model: what comes back from a tier is what went there."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from checksum_model import ChecksumModel, continuation, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from sessile.server.engine.cache_messages import CacheCall, ResumePath
from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.lower_tiers import TierSetup, open_lower_tiers
from sessile.server.engine.messages import FinishReason, SubmitTurn, TurnOutput
from sessile.server.engine.sampling_params import SamplingParams
from sessile.sessions.cache.cost_model import Calibration
from sessile.sessions.cache.tiers import LoadOutcome, Tier
from sessile.sessions.errors import ConfigError

BLOCK = 16
BLOCK_BYTES = 2 * BLOCK * 2 * 4
LOADING_IS_CHEAP = Calibration(prefill=(1.0, 1.0, 0.0), loads={"host": (1e-6, 1e-12), "disk": (1e-6, 1e-12)})
COMPUTING_IS_CHEAP = Calibration(prefill=(1e-9, 1e-9, 0.0), loads={"host": (1.0, 1.0), "disk": (1.0, 1.0)})
pytestmark = pytest.mark.usefixtures("pool")


class Engine:
    """An engine core with tiers, stepped until its turns end."""

    def __init__(
        self,
        num_blocks: int,
        host_blocks: int = 0,
        disk: Path | None = None,
        calibration: Calibration = LOADING_IS_CHEAP,
        weights: str = "w",
    ) -> None:
        config = EngineConfig(
            kv_memory_bytes=num_blocks * BLOCK_BYTES,
            host_memory_bytes=host_blocks * BLOCK_BYTES,
            disk_path=str(disk) if disk is not None else "",
            disk_quota_bytes=2**20,
            max_sequences=4,
        )
        self.core = EngineCore(
            config,
            ChecksumModel(),
            torch.device("cpu"),
            itertools.count().__next__,
            weights,
            TierSetup(partial(open_lower_tiers, config), lambda model, kv_cache, tiers: calibration),
        )
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, TurnOutput] = {}
        self._names = itertools.count()

    def submit(self, prompt: list[int], max_tokens: int = 3, salt: str = "") -> str:
        turn_id = str(next(self._names))
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        self.core.submit(SubmitTurn(turn_id=turn_id, token_ids=prompt, sampling=params, cache_salt=salt))
        return turn_id

    def step(self) -> None:
        if self.core.only_waits:
            time.sleep(0.0002)  # a real thread loads
        for output in self.core.step():
            self.tokens.setdefault(output.turn_id, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.last[output.turn_id] = output
        self.core.check_integrity()

    def run(self) -> None:
        for _ in range(20000):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("the engine wedged")

    def complete(self, prompt: list[int], **kwargs) -> TurnOutput:
        turn_id = self.submit(prompt, **kwargs)
        self.run()
        assert self.tokens[turn_id] == continuation(prompt, len(self.tokens[turn_id]))
        return self.last[turn_id]


def loaded_at_once(engine: Engine) -> None:
    """Makes the I/O thread as fast as it can be: a load is done when it is submitted."""
    transfer = engine.core._cache.transfer
    assert transfer is not None

    threads = transfer._threads
    threads._local.put = lambda load: threads._ended.put(threads._load(load))


def test_what_leaves_the_pool_comes_back_from_host() -> None:
    """llama.cpp #22756, #22746: N + 1 agents on N slots computed everything again."""
    engine = Engine(num_blocks=24, host_blocks=200)
    for seed in range(4):
        engine.complete(prompt(200, seed))
    sources = engine.complete([*prompt(200, 0), 1, 2]).usage.tokens_by_source
    assert sources.total == 202
    assert sources.host + sources.device == 192
    assert sources.host > 0
    assert sources.computed == 10
    (host,) = engine.core.stats().tiers
    assert host.tier == "host" and host.events["hits"] == sources.host // BLOCK and not host.unavailable
    engine.core.close()


def test_a_restart_finds_its_blocks_on_disk(tmp_path: Path) -> None:
    """LMCache #562, #1175, #1788, #2136; llama.cpp #26676: reuse is proven after a restart."""
    before = Engine(num_blocks=64, disk=tmp_path / "kv")
    before.complete(prompt(300), max_tokens=20)
    before.core.close()
    after = Engine(num_blocks=64, disk=tmp_path / "kv")
    longer = [*prompt(300), *continuation(prompt(300), 20), 5, 6]
    sources = after.complete(longer).usage.tokens_by_source
    assert sources.disk == 319, "to the token: the half-full block at the end too"
    assert sources.computed == 322 - 319
    again = after.complete(longer).usage.tokens_by_source
    assert again.device == 321, "what was loaded is in the tree"
    after.core.close()


def test_another_models_blocks_are_never_read(tmp_path: Path) -> None:
    before = Engine(num_blocks=64, disk=tmp_path / "kv", weights="one")
    before.complete(prompt(300))
    before.core.close()
    after = Engine(num_blocks=64, disk=tmp_path / "kv", weights="two")
    assert after.complete(prompt(300)).usage.tokens_by_source.computed == 300
    after.core.close()


def test_tenants_share_no_tier(tmp_path: Path) -> None:
    engine = Engine(num_blocks=24, host_blocks=100, disk=tmp_path / "kv")
    engine.complete(prompt(200), salt="one")
    engine.complete(prompt(300, 7), salt="two")  # pushes the first out of the pool
    assert engine.complete(prompt(200), salt="two").usage.tokens_by_source.computed == 200
    assert engine.complete(prompt(200), salt="one").usage.tokens_by_source.computed < 20
    engine.core.close()


def test_what_is_cheaper_to_compute_is_computed() -> None:
    """SGLang #26305: a hit in the slow tier lost to computing it."""
    engine = Engine(num_blocks=24, host_blocks=200, calibration=COMPUTING_IS_CHEAP)
    for seed in range(4):
        engine.complete(prompt(200, seed))
    sources = engine.complete(prompt(200, 0)).usage.tokens_by_source
    assert sources.host == 0
    engine.core.close()


def test_the_cost_model_learns_from_prefills_that_are_alone_in_their_step() -> None:
    engine = Engine(num_blocks=24, host_blocks=200)
    before = engine.core._cache.transfer.cost.prefill_s(100, 0)
    for seed in range(6):
        engine.complete(prompt(100, seed))  # one tick of the clock, where 101 s are predicted
    assert engine.core._cache.transfer.cost.prefill_s(100, 0) < before / 3
    engine.core.close()


def test_damaged_and_truncated_segments_are_computed_again(tmp_path: Path) -> None:
    before = Engine(num_blocks=64, disk=tmp_path / "kv")
    before.complete(prompt(300))
    before.core.close()
    segments = [path for path in (tmp_path / "kv").rglob("*") if path.is_file() and path.stat().st_size >= BLOCK_BYTES]
    assert segments
    damaged = 0
    for path in segments:
        content = bytearray(path.read_bytes())
        if len(content) > 4 * BLOCK_BYTES:
            content[2 * BLOCK_BYTES + 9] ^= 1
            path.write_bytes(content[: len(content) // 2])
            damaged += 1
    assert damaged
    after = Engine(num_blocks=64, disk=tmp_path / "kv")
    sources = after.complete(prompt(300)).usage.tokens_by_source
    assert sources.total == 300
    assert sources.computed > 0
    after.core.close()


def test_a_turn_aborted_while_it_loads_gives_everything_back(tmp_path: Path) -> None:
    before = Engine(num_blocks=64, disk=tmp_path / "kv")
    before.complete(prompt(300))
    before.core.close()
    after = Engine(num_blocks=64, disk=tmp_path / "kv")
    turn_id = after.submit(prompt(300))
    after.core.step()
    after.core.abort(turn_id)
    after.run()
    assert after.last[turn_id].finish_reason is FinishReason.ABORTED
    assert after.core.stats().used_blocks == 0
    assert after.complete(prompt(300)).usage.tokens_by_source.computed < 20
    after.core.close()


def test_others_go_on_while_a_turn_loads_and_followers_wait_for_it(tmp_path: Path) -> None:
    before = Engine(num_blocks=64, disk=tmp_path / "kv")
    before.complete(prompt(300))
    before.core.close()
    after = Engine(num_blocks=64, disk=tmp_path / "kv")
    names = [after.submit(prompt(300)), after.submit([*prompt(300), 9]), after.submit(prompt(50, 3))]
    after.run()
    by_name = [after.last[name].usage.tokens_by_source for name in names]
    assert by_name[0].disk == 288
    assert by_name[1].disk == 0
    assert by_name[1].in_flight == 288
    assert by_name[2].computed == 50
    after.core.close()


def test_two_engines_on_one_folder_are_refused(tmp_path: Path) -> None:
    first = Engine(num_blocks=64, disk=tmp_path / "kv")
    with pytest.raises(ConfigError) as raised:
        Engine(num_blocks=64, disk=tmp_path / "kv")
    assert raised.value.remedy
    first.core.close()


TURNS = st.lists(
    st.tuples(
        st.integers(0, 3),  # which shared prefix
        st.integers(0, 60),  # its length
        st.integers(1, 120),  # length of the prompt, if the context holds it
        st.integers(1, 20),  # tokens to sample
        st.integers(0, 6),  # steps before the next turn comes
        st.booleans(),  # aborted before the next turn comes
    ),
    min_size=2,
    max_size=10,
)


@pytest.mark.parametrize("at_once", [False, True])
@settings(max_examples=60, deadline=None)
@given(turns=TURNS, num_blocks=st.integers(8, 14), host_blocks=st.integers(1, 24))
def test_any_load_over_small_tiers_gives_each_turn_its_own_tokens(
    at_once: bool, turns, num_blocks: int, host_blocks: int
) -> None:
    engine = Engine(num_blocks=num_blocks, host_blocks=host_blocks)
    if at_once:
        loaded_at_once(engine)
    expected: dict[str, list[int]] = {}
    for family, shared, length, count, steps, aborted in turns:
        length = min(length, engine.core.context_length - 1)
        tokens = [*prompt(shared, family), *prompt(length, family + len(expected))][:length]
        turn_id = engine.submit(tokens, max_tokens=count)
        expected[turn_id] = continuation(tokens, min(count, engine.core.context_length - length))
        for _ in range(steps):
            engine.step()
        if aborted:
            engine.core.abort(turn_id)
    engine.run()
    for turn_id, tokens in expected.items():
        last, got = engine.last[turn_id], engine.tokens.get(turn_id, [])
        assert got == tokens[: len(got)]
        assert last.finish_reason is FinishReason.ABORTED or got == tokens
        assert last.usage.tokens_by_source.total == last.usage.prompt_tokens
    assert engine.core.stats().used_blocks == 0
    engine.core.close()


def test_a_load_does_not_overwrite_a_block_that_is_yet_to_be_copied_from() -> None:
    """The block that one turn copies on write is evicted for another's load in the same step."""
    engine = Engine(num_blocks=10, host_blocks=64)
    loaded_at_once(engine)
    stored, shared = prompt(96, 1), prompt(14, 2)
    for tokens in (stored, prompt(159, 9), shared, prompt(96, 3)):
        engine.complete(tokens, max_tokens=1)
    names = {engine.submit(tokens): tokens for tokens in ([*shared[:10], *prompt(20, 4)], [*stored, 7])}
    engine.run()
    by_name = [engine.last[name].usage.tokens_by_source for name in names]
    assert by_name[0].device == 10
    assert by_name[1].host > 0
    for name, tokens in names.items():
        assert engine.tokens[name] == continuation(tokens, 3)
    engine.core.close()


class BrokenTier:
    """Has everything, and raises when it is to give it."""

    def __init__(self, tier) -> None:
        self._tier = tier

    def __getattr__(self, name: str):
        return getattr(self._tier, name)

    def load(self, entries, deadline: float):
        raise RuntimeError("broken")


def test_a_tier_that_raises_is_a_miss() -> None:
    engine = Engine(num_blocks=24, host_blocks=200)
    for seed in range(4):
        engine.complete(prompt(200, seed))
    lower = engine.core._cache.transfer.tiers
    lower._local[Tier.HOST] = BrokenTier(lower._local[Tier.HOST])
    for seed in (0, 1):
        assert engine.complete(prompt(200, seed)).usage.tokens_by_source.host == 0
    engine.core.close()


class SlowTier(BrokenTier):
    """Takes its time, and notes by when it is to be done."""

    deadlines: list[float]

    def load(self, entries, deadline: float):
        self.deadlines.append(deadline)
        time.sleep(0.1)
        return self._tier.load(entries, deadline)


def test_a_load_that_waits_behind_another_is_late_by_its_own_deadline() -> None:
    engine = Engine(num_blocks=24, host_blocks=200)
    for seed in range(3):
        engine.complete(prompt(150, seed))
    lower = engine.core._cache.transfer.tiers
    slow = SlowTier(lower._local[Tier.HOST])
    slow.deadlines = []
    lower._local[Tier.HOST] = slow
    for seed in (0, 1):
        engine.submit(prompt(150, seed))
    engine.run()
    first, second = dict.fromkeys(slow.deadlines)  # of a load, in however many pieces
    assert abs(second - first) < 0.1, "both were planned at once"
    engine.core.close()


def test_the_times_of_a_turn_are_never_negative_and_sum_to_its_life() -> None:
    """A turn that is preempted and loaded again, and one that is aborted while it loads."""
    engine = Engine(num_blocks=12, host_blocks=200)
    turns = [engine.submit(prompt(60, seed), max_tokens=60) for seed in range(3)]
    engine.run()
    aborted = engine.submit(prompt(60, 0))
    engine.core.step()
    assert engine.core.only_waits
    engine.core.abort(aborted)
    engine.run()
    assert engine.core.stats().preemptions
    for turn_id in (*turns, aborted):
        usage = engine.last[turn_id].usage
        assert min(usage.queue_s, usage.load_s, usage.prefill_s, usage.decode_s) >= 0
    assert engine.last[aborted].usage.load_s > 0
    engine.core.close()


FAST = Calibration(prefill=(1e-3, 1e-4, 0.0), loads={"disk": (1e-6, 1e-12)})  # and so short deadlines


class HangingTier(BrokenTier):
    """A disk that does not return from a read until it is let go."""

    def __init__(self, tier) -> None:
        super().__init__(tier)
        self.lets_go = threading.Event()
        self.reads = 0

    def load(self, entries, deadline: float):
        if self.lets_go.is_set():
            return self._tier.load(entries, deadline)
        self.reads += 1
        self.lets_go.wait(60.0)
        for entry in entries:
            entry.blocks[0][:] = 7  # what it writes in the end must hurt nobody
        return [LoadOutcome.HIT] * len(entries)


@pytest.mark.parametrize("num_blocks", [64, 22])
def test_lmcache_3855_a_read_that_hangs_does_not_hold_its_turn(tmp_path: Path, num_blocks: int) -> None:
    """LMCache #3855: retrieve deadlocks. The turn computes in other blocks; those of the read come back with it."""
    before = Engine(num_blocks=64, disk=tmp_path / "kv")
    before.complete(prompt(150))
    before.core.close()
    engine = Engine(num_blocks=num_blocks, disk=tmp_path / "kv", calibration=FAST)
    lower = engine.core._cache.transfer.tiers
    hanging = HangingTier(lower._local[Tier.DISK])
    lower._local[Tier.DISK] = hanging
    sources = engine.complete(prompt(150)).usage.tokens_by_source
    assert sources.computed == 150
    assert engine.complete(prompt(150, 3)).usage.tokens_by_source.computed == 150, "nobody else reads from it"
    assert hanging.reads == 1
    assert "does not come back" in engine.core.stats().tiers[0].unavailable
    assert engine.core._cache.transfer.num_hanging_blocks == 9
    hanging.lets_go.set()
    while engine.core._cache.transfer.num_hanging_blocks:
        engine.core.step()
        time.sleep(0.001)
    engine.core.check_integrity()
    assert engine.complete(prompt(150)).usage.tokens_by_source.cached >= 144
    engine.core.close()


def test_a_prefetch_that_hangs_ends(tmp_path: Path) -> None:
    before = Engine(num_blocks=64, disk=tmp_path / "kv")
    before.complete(prompt(150))
    before.core.close()
    engine = Engine(num_blocks=64, disk=tmp_path / "kv", calibration=FAST)
    lower = engine.core._cache.transfer.tiers
    hanging = HangingTier(lower._local[Tier.DISK])
    lower._local[Tier.DISK] = hanging
    engine.core.call(CacheCall(1, ResumePath(owner="one", token_ids=prompt(150))))
    assert engine.core.has_work
    engine.run()
    hanging.lets_go.set()
    engine.core.close()
