"""Sessions that fork, roll back, pin, wait for tools, suspend and resume, on a pool of a tenth of what they need.

Each turn's tokens are compared with what the model says of its prompt alone; pool, tree and locks are counted after
every operation. Whatever is asked for, all turns end: nothing that waits or is pinned holds what others need.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from checksum_model import VOCAB, ChecksumModel, continuation
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sessile.server.engine.cache_messages import (
    CacheCall,
    CacheRequest,
    CacheResponse,
    PersistPath,
    ReleasePath,
    ResumePath,
    RetainOutcome,
    RetainPath,
    SupersedePath,
    SuspendPath,
)
from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.lower_tiers import TierSetup, open_lower_tiers
from sessile.server.engine.messages import FinishReason, SubmitTurn, TurnOutput
from sessile.server.engine.sampling_params import SamplingParams
from sessile.sessions.cache import path_locks
from sessile.sessions.cache.cost_model import Calibration
from sessile.sessions.cache.path_locks import up
from sessile.sessions.cache.radix_node import Node
from sessile.sessions.cache.retention import Keeping, Retention, Verdict

BLOCK = 16
BLOCK_BYTES = 2 * BLOCK * 2 * 4
NUM_BLOCKS = 20
LOADING_IS_CHEAP = Calibration(prefill=(1.0, 1.0, 0.0), loads={"host": (1e-6, 1e-12)})
OWNERS = st.integers(0, 11).map(str)
MOST_STEPS = 5000


class Sessions:
    """An engine on a fake clock, and the sessions' logs as lists of tokens."""

    def __init__(self, num_blocks: int = NUM_BLOCKS, host_blocks: int = 30, **config: float) -> None:
        self.now = 1000.0
        settings = EngineConfig(
            kv_memory_bytes=num_blocks * BLOCK_BYTES,
            host_memory_bytes=host_blocks * BLOCK_BYTES,
            max_sequences=4,
            max_batch_tokens=64,
            **config,
        )
        setup = TierSetup(partial(open_lower_tiers, settings), lambda model, kv_cache, lower: LOADING_IS_CHEAP)
        tiers = setup if host_blocks else None
        self.core = EngineCore(settings, ChecksumModel(), torch.device("cpu"), lambda: self.now, "w", tiers)
        if self.core._cache.transfer is not None:
            threads = self.core._cache.transfer._threads  # as fast as they can be
            threads._local.put = lambda load: threads._ended.put(threads._load(load))
        self.logs: dict[str, list[int]] = {}
        self.open: dict[str, tuple[str, list[int]]] = {}  # turn -> owner, prompt
        self.said: dict[str, list[int]] = {}
        self.last: dict[str, TurnOutput] = {}
        self._ids = itertools.count()

    def submit(self, owner: str, new: list[int], max_tokens: int) -> str:
        room = self.core.context_length - max_tokens
        prompt = [*self.logs.get(owner, []), *new][:room]
        turn_id = str(next(self._ids))
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        self.core.submit(
            SubmitTurn(turn_id=turn_id, token_ids=prompt, sampling=params, owner=owner, cache_salt=self.salt(owner))
        )
        self.open[turn_id] = (owner, prompt)
        self.said[turn_id] = []
        return turn_id

    def salt(self, owner: str) -> str:
        return f"tenant {hash_of(owner) % 2}"

    def pinned_blocks_of(self, owner: str) -> int:
        """Of the owner's tenant."""
        return self.core._cache.tree.num_pinned_blocks_of(self.salt(owner))

    def counted_blocks_of(self, owner: str) -> int:
        """Of the owner's tenant, by the tree's counts."""
        return self.core._cache.tree.num_kept_blocks_of(self.salt(owner))

    def kept_blocks_of(self, owner: str) -> int:
        """Blocks of the owner's tenant that go after what nobody pinned, or not at all."""
        edges: set[Node] = set()
        for end in self.core._cache.ends._ends.values():
            ranks = end.node is not None and end.keeping.pin_level(self.now) > 0
            for node in (end.node if ranks else None, None if end.pin is None else end.pin.node):
                if node is not None and node.salt == self.salt(owner):
                    edges.update(up(node))
        return sum(len(edge.blocks) for edge in edges)

    def step(self) -> None:
        self.now += 0.01
        for output in self.core.step():
            self.said[output.turn_id] += output.token_ids
            if output.finish_reason is not None:
                self.end(output)
        self.core.take_answers()
        self.core.take_events()

    def end(self, output: TurnOutput) -> None:
        owner, prompt = self.open.pop(output.turn_id)
        said = self.said.pop(output.turn_id)
        assert said == continuation(prompt, len(said))
        assert output.usage is not None
        assert output.usage.tokens_by_source.total == output.usage.prompt_tokens == len(prompt)
        self.last[owner] = output
        if output.finish_reason is not FinishReason.ABORTED:
            self.logs[owner] = [*prompt, *said]

    def run(self) -> None:
        """Until all turns have ended."""
        for _ in range(MOST_STEPS):
            if not self.core.has_work:
                assert not self.open
                return
            self.step()
            self.core.check_integrity()
        raise AssertionError("the engine wedged")

    def turn(self, owner: str, new: list[int], max_tokens: int = 3) -> TurnOutput:
        self.submit(owner, new, max_tokens)
        self.run()
        return self.last[owner]

    def ask(self, request: CacheRequest) -> CacheResponse:
        self.core.call(CacheCall(1, request))
        for _ in range(MOST_STEPS):
            for answer in self.core.take_answers():
                return answer.response
            time.sleep(0.0002)
        raise AssertionError("no answer")

    def retain(self, owner: str, **retention) -> RetainOutcome:
        path = self.logs.get(owner, [1])
        wish = Retention(**retention)
        return self.ask(RetainPath(owner=owner, token_ids=path, cache_salt=self.salt(owner), retention=wish))


def hash_of(owner: str) -> int:
    """Of any text, the same in each run."""
    return sum(owner.encode())


def prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


class CacheMachine(RuleBasedStateMachine):
    num_blocks = NUM_BLOCKS
    pin_budget = 0.5
    tenant_blocks = 0
    tenant_pinned_blocks = 0

    def __init__(self) -> None:
        super().__init__()
        self.sessions = Sessions(
            self.num_blocks,
            pin_budget=self.pin_budget,
            tenant_kv_bytes=self.tenant_blocks * BLOCK_BYTES,
            tenant_pinned_bytes=self.tenant_pinned_blocks * BLOCK_BYTES,
        )
        self.seeds = itertools.count()

    def path(self, owner: str) -> dict[str, object]:
        tokens = self.sessions.logs.get(owner, [1, 2])
        return {"owner": owner, "token_ids": tokens, "cache_salt": self.sessions.salt(owner)}

    def is_open(self, owner: str) -> bool:
        return any(each == owner for each, _ in self.sessions.open.values())

    @rule(owner=OWNERS, length=st.integers(1, 90), max_tokens=st.integers(1, 20))
    def submit(self, owner: str, length: int, max_tokens: int) -> None:
        if not self.is_open(owner):
            self.sessions.submit(owner, prompt(length, next(self.seeds)), max_tokens)

    @rule(count=st.integers(1, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.sessions.step()

    @rule()
    def all_sessions_come_back_at_once(self) -> None:
        """vLLM #49439."""
        for owner in list(self.sessions.logs):
            if not self.is_open(owner):
                self.sessions.submit(owner, prompt(5, next(self.seeds)), 3)

    @precondition(lambda self: self.sessions.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.sessions.core.abort(data.draw(st.sampled_from(sorted(self.sessions.open))))

    @rule(owner=OWNERS, by=st.sampled_from([2, 4, 6]))
    def fork(self, owner: str, by: int) -> None:
        """Of the same tenant."""
        self.sessions.logs[str((int(owner) + by) % 12)] = list(self.sessions.logs.get(owner, []))

    @rule(owner=OWNERS, share=st.floats(0, 1))
    def roll_back(self, owner: str, share: float) -> None:
        path = self.path(owner)
        from_token = int(len(path["token_ids"]) * share)
        self.sessions.ask(SupersedePath(**path, from_token=from_token))
        if owner in self.sessions.logs and not self.is_open(owner):
            del self.sessions.logs[owner][from_token:]

    @rule(
        owner=OWNERS,
        ttl_s=st.none() | st.floats(0.1, 20),
        hard=st.booleans(),
        priority=st.integers(-2, 3),
        idle=st.none() | st.tuples(st.floats(0, 5), st.floats(5, 500)),
    )
    def retain(self, owner: str, ttl_s, hard: bool, priority: int, idle) -> None:
        outcome = self.sessions.retain(owner, ttl_s=ttl_s, hard=hard, priority=priority, expected_idle_s=idle)
        assert outcome.verdict is Verdict.ACCEPTED or outcome.reason
        assert outcome.pinned_tokens <= len(self.sessions.logs.get(owner, [1]))

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        self.sessions.ask(ReleasePath(owner=owner))

    @rule(owner=OWNERS)
    def suspend(self, owner: str) -> None:
        self.sessions.ask(SuspendPath(**self.path(owner)))

    @rule(owner=OWNERS)
    def persist(self, owner: str) -> None:
        self.sessions.ask(PersistPath(**self.path(owner)))

    @rule(owner=OWNERS)
    def resume(self, owner: str) -> None:
        estimate = self.sessions.ask(ResumePath(**self.path(owner)))
        known = sum(estimate.tokens_by_tier.values()) + estimate.tokens_to_compute
        assert known == len(self.path(owner)["token_ids"])

    @rule(seconds=st.floats(0.1, 400))
    def wait(self, seconds: float) -> None:
        self.sessions.now += seconds

    @invariant()
    def integrity(self) -> None:
        self.sessions.core.check_integrity()
        stats = self.sessions.core.stats().cache
        assert stats.pinned_blocks <= stats.pin_budget_blocks
        of_tenants = [self.sessions.pinned_blocks_of(owner) for owner in "01"]
        assert sum(of_tenants) == stats.pinned_blocks
        if self.tenant_pinned_blocks:
            assert max(of_tenants) <= self.tenant_pinned_blocks
            for owner in "01":
                counted = self.sessions.counted_blocks_of(owner)
                assert self.sessions.kept_blocks_of(owner) <= counted <= self.tenant_pinned_blocks

    def teardown(self) -> None:
        """Everything ends, whatever is pinned; nobody holds anything afterwards but pins, and they give it back."""
        self.sessions.run()
        stats = self.sessions.core.stats()
        assert stats.used_blocks == stats.cache.pinned_blocks
        for owner in range(12):
            self.sessions.ask(ReleasePath(owner=str(owner)))
        stats = self.sessions.core.stats()
        assert stats.used_blocks == stats.cache.pinned_blocks == 0
        assert [self.sessions.pinned_blocks_of(owner) for owner in "01"] == [0, 0]
        assert [self.sessions.counted_blocks_of(owner) for owner in "01"] == [0, 0]
        self.sessions.core.close()


class AllMayBePinned(CacheMachine):
    """SGLang #27024: pins over the whole pool."""

    pin_budget = 1.0


class NothingMayBePinned(CacheMachine):
    pin_budget = 0.0
    num_blocks = 9


class TenantsHaveQuotas(CacheMachine):
    tenant_blocks = 6


PINS = st.tuples(  # of whom, after how many tokens, how
    st.sampled_from("0246"), st.integers(1, 40), st.booleans(), st.integers(0, 3), st.none() | st.just((1.0, 9.0))
)


class TenantsMayPinLittle(CacheMachine):
    """Less than the budget, and less than most paths have."""

    pin_budget = 1.0
    tenant_pinned_blocks = 3

    @rule(pins=st.lists(PINS, min_size=1, max_size=5))
    def turns_and_pins(self, pins: list[tuple[str, int, bool, int, tuple[float, float] | None]]) -> None:
        """What is pinned is cached, which a pin at any time seldom finds, and beside others of the tenant."""
        for owner, length, hard, priority, idle in pins:
            self.submit(owner, length, 3)
            self.sessions.run()
            self.retain(owner, None, hard, priority, idle)
            self.integrity()


MACHINE = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = MACHINE
TestAllMayBePinned = AllMayBePinned.TestCase
TestAllMayBePinned.settings = MACHINE
TestNothingMayBePinned = NothingMayBePinned.TestCase
TestNothingMayBePinned.settings = MACHINE
TestTenantsHaveQuotas = TenantsHaveQuotas.TestCase
TestTenantsHaveQuotas.settings = MACHINE
TestTenantsMayPinLittle = TenantsMayPinLittle.TestCase
TestTenantsMayPinLittle.settings = MACHINE


def test_sglang_27024_pinned_sessions_never_deadlock() -> None:
    """Hard pins over the whole pool: a turn that needs all of it runs all the same."""
    sessions = Sessions(20, host_blocks=0, pin_budget=1.0)
    for owner in ("0", "2"):
        sessions.turn(owner, prompt(140, int(owner)))
        assert sessions.retain(owner, hard=True).pinned_tokens > 0
    assert sessions.core.stats().cache.pinned_blocks == 18
    assert sessions.turn("6", prompt(250, 9)).finish_reason is FinishReason.LENGTH
    assert sessions.core.stats().cache.broken_pins > 0
    sessions.core.close()


def test_a_hard_pin_makes_others_wait_rather_than_go() -> None:
    sessions = Sessions(20, host_blocks=0, pin_budget=0.5)
    sessions.turn("0", prompt(95, 0))
    assert sessions.retain("0", hard=True).verdict is Verdict.ACCEPTED
    for seed in range(1, 6):
        sessions.submit(str(seed), prompt(100, seed), 3)
    sessions.run()
    assert sessions.core.stats().cache.broken_pins == 0
    assert sessions.turn("0", [1]).usage.tokens_by_source.device >= 96
    sessions.core.close()


def test_vllm_49439_sessions_that_all_come_back_do_not_wait_for_each_other() -> None:
    sessions = Sessions(20, host_blocks=200)
    owners = [str(owner) for owner in range(12)]
    for owner in owners:
        sessions.turn(owner, prompt(200, int(owner)))  # ten times the pool
    for owner in owners:
        sessions.ask(ResumePath(owner=owner, token_ids=sessions.logs[owner], cache_salt=sessions.salt(owner)))
    for owner in owners:
        sessions.submit(owner, prompt(5, 99), 3)
    sessions.run()
    reused = [sessions.last[owner].usage.tokens_by_source.cached for owner in owners]
    assert min(reused) >= 192
    sessions.core.close()


@pytest.mark.parametrize("gap_s", [5.0, 60.0])
def test_llamacpp_22756_more_agents_than_fit_come_back_from_a_lower_tier(gap_s: float) -> None:
    """llama.cpp #22756, #22746: N + 1 agents on N slots, or a sub-agent's return, computed everything again."""
    sessions = Sessions(26, host_blocks=200)
    for _round in range(3):
        for owner in ("0", "2", "4"):  # two of them fit
            before = len(sessions.logs.get(owner, []))
            sources = sessions.turn(
                owner, prompt(100 if _round == 0 else 8, int(owner) + _round)
            ).usage.tokens_by_source
            assert sources.computed <= len(sessions.logs[owner]) - before + BLOCK
            sessions.now += gap_s
    sessions.core.close()


def test_sglang_24656_superseded_branches_go_before_live_ones() -> None:
    """SGLang #24656, vllm-mlx #766: the least recently used one was the live turn, in a tool call."""
    sessions = Sessions(26, host_blocks=0)
    sessions.turn("0", prompt(100, 0))  # waits for a tool, and is the oldest
    sessions.turn("2", prompt(100, 2))
    old = sessions.logs["2"]
    sessions.ask(SupersedePath(owner="2", token_ids=old, from_token=0, cache_salt=sessions.salt("2")))
    sessions.logs["2"] = []
    sessions.turn("2", prompt(120, 3))
    sessions.turn("4", prompt(80, 4))
    assert sessions.turn("0", [1]).usage.tokens_by_source.device >= 102
    assert sessions.core.stats().cache.superseded_blocks_evicted > 0
    sessions.core.close()


def test_trtllm_13080_a_rolled_back_conversation_gives_its_kv_back() -> None:
    """TRT-LLM #13080: there was no way to drop the KV of a truncated conversation."""
    sessions = Sessions(40, host_blocks=100)
    sessions.turn("0", prompt(200, 0))
    path = {"owner": "0", "token_ids": sessions.logs["0"], "cache_salt": sessions.salt("0")}
    sessions.ask(SupersedePath(**path, from_token=40))
    for seed in (1, 2):
        sessions.turn("2", prompt(300, seed))
        sessions.logs["2"] = []
    stats = sessions.core.stats().cache
    assert stats.superseded_blocks_evicted == 10
    assert stats.demoted_blocks.get("host", 0) == stats.evicted_blocks - 10, "nobody will ask for them again"
    sessions.core.close()


def test_vllm_50422_the_tail_of_a_path_goes_first() -> None:
    sessions = Sessions(26, host_blocks=0)
    sessions.turn("0", prompt(300, 0))
    sessions.turn("2", prompt(200, 2))
    left = sessions.turn("0", [1]).usage.tokens_by_source.device
    assert left and left % BLOCK == 0
    sessions.core.close()


def test_a_session_that_waits_for_a_tool_keeps_its_place_until_the_tool_is_overdue() -> None:
    sessions = Sessions(26, host_blocks=0)
    sessions.turn("0", prompt(100, 0))
    assert sessions.retain("0", expected_idle_s=(10.0, 30.0)).verdict is Verdict.ACCEPTED
    for seed in range(1, 5):
        sessions.turn("2", prompt(100, seed))
        sessions.logs["2"] = []
    assert sessions.turn("0", [1]).usage.tokens_by_source.device == 102
    sessions.retain("0", expected_idle_s=(10.0, 30.0))
    sessions.now += 31.0
    for seed in range(5, 8):
        sessions.turn("2", prompt(100, seed))
        sessions.logs["2"] = []
    assert sessions.turn("0", [1]).usage.tokens_by_source.device < 102
    sessions.core.close()


def test_of_two_sessions_that_wait_the_later_to_return_goes_first() -> None:
    sessions = Sessions(26, host_blocks=0)
    sessions.turn("0", prompt(100, 0))
    sessions.turn("2", prompt(100, 1))
    sessions.retain("0", expected_idle_s=(10.0, 100.0))
    sessions.retain("2", expected_idle_s=(50.0, 100.0))
    sessions.turn("4", prompt(180, 2))
    assert sessions.turn("0", [1], 1).usage.tokens_by_source.device == 102
    sessions.core.close()


def test_a_tenant_over_its_quota_gives_up_its_own_first() -> None:
    sessions = Sessions(40, host_blocks=0, tenant_kv_bytes=10 * BLOCK_BYTES)
    sessions.turn("1", prompt(140, 0))  # one tenant, within its quota, and the oldest
    for seed in range(1, 6):
        sessions.turn("2", prompt(100, seed))  # the other one
        sessions.logs["2"] = []
    stats = sessions.core.stats().cache
    assert stats.over_quota_blocks_evicted == stats.evicted_blocks > 0
    assert sessions.turn("1", [1]).usage.tokens_by_source.device == 142
    sessions.core.close()


def test_a_tenant_pins_no_more_than_it_may() -> None:
    """What others pin does not count, nor twice what two sessions share; what is given back can be pinned again."""
    sessions = Sessions(60, host_blocks=0, pin_budget=1.0, tenant_pinned_bytes=9 * BLOCK_BYTES)
    for owner in ("0", "1", "2", "4"):
        sessions.turn(owner, prompt(100, int(owner)))  # 7 blocks
    assert sessions.retain("0", hard=True, ttl_s=50.0).verdict is Verdict.ACCEPTED
    sessions.logs["6"] = list(sessions.logs["0"])  # a fork
    assert sessions.retain("6", hard=True).verdict is Verdict.ACCEPTED
    assert sessions.pinned_blocks_of("0") == 7
    clipped = sessions.retain("2", hard=True)
    assert (clipped.verdict, clipped.pinned_tokens) == (Verdict.CLIPPED, 2 * BLOCK)
    assert "a tenant's hard pins is 9 blocks, of which 9 are used" in clipped.reason
    refused = sessions.retain("4", hard=True)
    assert (refused.verdict, refused.pinned_tokens, refused.reason) == (Verdict.REJECTED, 0, clipped.reason)
    assert sessions.retain("1", hard=True).verdict is Verdict.ACCEPTED  # another tenant
    assert sessions.core.stats().cache.tenant_limited_pins == 2
    sessions.ask(ReleasePath(owner="2"))
    sessions.ask(ReleasePath(owner="6"))
    assert sessions.pinned_blocks_of("0") == 7
    sessions.now += 51.0
    sessions.step()
    assert sessions.pinned_blocks_of("0") == 0
    assert sessions.retain("4", hard=True).verdict is Verdict.ACCEPTED
    sessions.turn("4", prompt(100, 9))
    assert sessions.pinned_blocks_of("4") == 9  # of a path that grew to 13
    sessions.core.check_integrity()
    sessions.core.close()


def test_soft_pins_of_a_tenant_have_room_beside_its_hard_ones_alone() -> None:
    """One without room is refused, and ranks like what nobody pinned; a hard one takes the place of the soft ones of
    the lowest priority."""
    sessions = Sessions(60, host_blocks=0, pin_budget=1.0, tenant_pinned_bytes=16 * BLOCK_BYTES)
    for owner in ("0", "1", "2", "4"):
        sessions.turn(owner, prompt(100, int(owner)))  # 7 blocks
    assert sessions.retain("0", priority=2).verdict is Verdict.ACCEPTED
    sessions.logs["6"] = list(sessions.logs["0"])  # a fork
    assert sessions.retain("6", priority=3).verdict is Verdict.ACCEPTED
    assert sessions.retain("2", ttl_s=50.0).verdict is Verdict.ACCEPTED
    assert sessions.kept_blocks_of("0") == 14
    refused = sessions.retain("4", priority=9)
    assert (refused.verdict, refused.pinned_tokens) == (Verdict.REJECTED, 0)
    assert "the pins of a tenant may keep 16 blocks, of which 14 are used" in refused.reason
    assert sessions.retain("1", priority=1).verdict is Verdict.ACCEPTED  # another tenant
    assert sessions.retain("4", priority=-1).verdict is Verdict.ACCEPTED  # to go first needs no room
    sessions.turn("2", prompt(100, 9))  # it grows to 13 blocks
    assert sessions.kept_blocks_of("0") == 7
    assert sessions.retain("4", hard=True).verdict is Verdict.ACCEPTED
    assert sessions.kept_blocks_of("0") == 14
    sessions.turn("8", prompt(100, 8))
    assert sessions.retain("8", hard=True).verdict is Verdict.ACCEPTED
    assert sessions.kept_blocks_of("0") == 14  # those of 0 and 6, of 7 blocks, gave way
    assert sessions.core.stats().cache.tenant_limited_pins == 1
    sessions.core.check_integrity()
    sessions.core.close()


def test_a_soft_pin_counts_on_both_sides_where_its_path_is_split_and_not_where_it_was_given_up() -> None:
    sessions = Sessions(26, host_blocks=0, tenant_pinned_bytes=12 * BLOCK_BYTES)
    sessions.turn("0", prompt(100, 0))  # 7 blocks
    assert sessions.retain("0", priority=2).verdict is Verdict.ACCEPTED
    sessions.logs["2"] = sessions.logs["0"][:50]
    sessions.turn("2", prompt(30, 2))  # goes on from the third block: 6, of which 3 are shared
    assert sessions.counted_blocks_of("0") == 7
    assert sessions.retain("2", priority=1).verdict is Verdict.ACCEPTED
    assert sessions.kept_blocks_of("0") == sessions.counted_blocks_of("0") == 10
    sessions.turn("1", prompt(330, 3))  # of another tenant
    assert sessions.kept_blocks_of("0") == sessions.counted_blocks_of("0") < 7
    for owner in ("0", "2"):
        sessions.ask(ReleasePath(owner=owner))
    assert sessions.counted_blocks_of("0") == 0
    sessions.core.check_integrity()
    sessions.core.close()


def edges_walked(monkeypatch: pytest.MonkeyPatch, num_others: int) -> int:
    """While a softly pinned session has a turn, beside others of its tenant that are pinned too."""
    sessions = Sessions(200, host_blocks=0, pin_budget=1.0, tenant_pinned_bytes=150 * BLOCK_BYTES)
    owners = [owner for owner in map(str, range(100)) if sessions.salt(owner) == sessions.salt("0")]
    for owner in owners[: 1 + num_others]:
        sessions.turn(owner, prompt(30, int(owner)))
        assert sessions.retain(owner, priority=1, hard=int(owner) % 3 == 1).verdict is Verdict.ACCEPTED
    walked: list[Node] = []

    def noted(node: Node) -> Iterator[Node]:
        for at in up(node):
            walked.append(at)
            yield at

    with monkeypatch.context() as patch:
        patch.setattr(path_locks, "up", noted)
        sessions.turn("0", prompt(30, 200))
    sessions.core.close()
    return len(walked)


def test_a_turn_of_a_pinned_session_looks_at_its_own_path_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = edges_walked(monkeypatch, 0)
    assert alone > 0
    assert edges_walked(monkeypatch, 12) == alone


def place_in_order(sessions: Sessions, owner: str) -> Keeping:
    """How the owner's path ranks."""
    return sessions.core._cache.ends._ends[owner].keeping


@pytest.mark.parametrize("hard", [False, True])
def test_who_waits_for_a_tool_is_awaited_though_its_pin_has_no_room(hard: bool) -> None:
    """The pin is told of again at the end of each turn, and counts once."""
    sessions = Sessions(40, host_blocks=0, pin_budget=1.0, tenant_pinned_bytes=9 * BLOCK_BYTES)
    sessions.turn("0", prompt(100, 0))  # 7 blocks
    assert sessions.retain("0", hard=hard, priority=1, ttl_s=500.0).verdict is Verdict.ACCEPTED
    sessions.turn("2", prompt(140, 2))  # 9 blocks, another path of the same tenant
    if hard:
        sessions.ask(ReleasePath(owner="0"))
        assert sessions.retain("2", hard=True).verdict is Verdict.ACCEPTED
    for turn in range(3):
        sessions.turn("0", prompt(50, 7 + turn))
        waits = sessions.retain("0", hard=hard, priority=1, ttl_s=500.0, expected_idle_s=(10.0, 30.0))
        assert (waits.verdict, waits.pinned_tokens) == (Verdict.CLIPPED, len(sessions.logs["0"]) - 1)
        assert "9 blocks" in waits.reason
        assert place_in_order(sessions, "0").is_awaited(sessions.now, 300.0)
        assert place_in_order(sessions, "0").pin_level(sessions.now) == 0
    assert sessions.core.stats().cache.tenant_limited_pins == 1
    sessions.ask(ReleasePath(owner="2"))
    del sessions.logs["0"][60:]
    sessions.turn("0", [1])
    assert place_in_order(sessions, "0").pin_level(sessions.now) == 2, "the pin was wished all the time"
    sessions.core.check_integrity()
    sessions.core.close()


def test_the_budget_of_all_is_named_where_it_is_what_lacks() -> None:
    sessions = Sessions(40, host_blocks=0, pin_budget=0.25, tenant_pinned_bytes=9 * BLOCK_BYTES)
    for owner in ("1", "0"):
        sessions.turn(owner, prompt(100, int(owner)))
    assert sessions.retain("1", hard=True).verdict is Verdict.ACCEPTED
    clipped = sessions.retain("0", hard=True)
    assert (clipped.verdict, clipped.pinned_tokens) == (Verdict.CLIPPED, 3 * BLOCK)
    assert "the budget of hard pins is 10 blocks" in clipped.reason
    assert sessions.core.stats().cache.tenant_limited_pins == 0
    sessions.core.close()


def test_priorities_of_soft_pins_are_an_order() -> None:
    sessions = Sessions(26, host_blocks=0)
    sessions.turn("0", prompt(100, 0))
    sessions.turn("2", prompt(100, 1))
    sessions.retain("0", priority=2, ttl_s=1000.0)
    sessions.retain("2", priority=1, ttl_s=1000.0)
    sessions.turn("4", prompt(180, 2))
    assert sessions.turn("0", [1], 1).usage.tokens_by_source.device == 102
    sessions.core.close()
