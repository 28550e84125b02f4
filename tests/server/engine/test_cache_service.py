"""What the front asks of the engine's cache, on an engine core with real tiers and the checksum model."""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from checksum_model import ChecksumModel, continuation, prompt
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sessile.server.engine.cache_messages import (
    CacheCall,
    CacheEvent,
    CacheEventKind,
    CacheRequest,
    CacheResponse,
    CallError,
    CallFailed,
    Done,
    ExportPath,
    ImportPath,
    PersistPath,
    ReleasePath,
    ResumePath,
    RetainPath,
    SupersedePath,
    SuspendPath,
)
from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.lower_tiers import TierSetup, open_lower_tiers
from sessile.server.engine.messages import SubmitTurn, TokensBySource, TurnOutput
from sessile.server.engine.sampling_params import SamplingParams
from sessile.sessions.cache.cost_model import Calibration
from sessile.sessions.cache.lifetime import Lifetime
from sessile.sessions.cache.retention import Retention, Verdict
from sessile.sessions.cache.tiers import Tier
from sessile.sessions.cache.token_key import TOKEN_BYTES, pack_tokens

BLOCK = 16
BLOCK_BYTES = 2 * BLOCK * 2 * 4
LOADING_IS_CHEAP = Calibration(prefill=(1.0, 1.0, 0.0), loads={"host": (1e-6, 1e-12), "disk": (1e-6, 1e-12)})
pytestmark = pytest.mark.usefixtures("pool")


class Engine:
    """An engine core with sessions: each is a list of tokens. Its clock stands still unless it is moved."""

    def __init__(
        self, num_blocks: int, host_blocks: int = 0, disk: Path | None = None, weights: str = "w", **config: float
    ) -> None:
        settings = EngineConfig(
            kv_memory_bytes=num_blocks * BLOCK_BYTES,
            host_memory_bytes=host_blocks * BLOCK_BYTES,
            disk_path=str(disk) if disk is not None else "",
            disk_quota_bytes=2**20,
            max_sequences=4,
            **config,
        )
        self.now = 0.0
        tiers = TierSetup(partial(open_lower_tiers, settings), lambda model, kv_cache, lower: LOADING_IS_CHEAP)
        has_tiers = host_blocks or disk is not None
        self.core = EngineCore(
            settings,
            ChecksumModel(),
            torch.device("cpu"),
            lambda: self.now,
            weights,
            tiers if has_tiers else None,
        )
        self.paths: dict[str, list[int]] = {}
        self.persist = True
        self.lifetime = Lifetime.DURABLE
        self._ids = itertools.count()

    def step(self) -> list[TurnOutput]:
        if self.core.only_waits:
            time.sleep(0.0002)  # a real thread works
        self.now += 0.001
        outputs = self.core.step()
        self.core.check_integrity()
        return outputs

    def submit(self, owner: str, new_tokens: list[int], max_tokens: int = 3, salt: str = "") -> str:
        turn_id = str(next(self._ids))
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        tokens = [*self.paths.get(owner, []), *new_tokens]
        turn = SubmitTurn(
            turn_id=turn_id,
            token_ids=tokens,
            sampling=params,
            cache_salt=salt,
            owner=owner,
            persist=self.persist,
            lifetime=self.lifetime,
        )
        self.core.submit(turn)
        return turn_id

    def turn(self, owner: str, new_tokens: list[int], max_tokens: int = 3, salt: str = "") -> TokensBySource:
        """One turn of a session, alone; where its prompt came from."""
        prompt = [*self.paths.get(owner, []), *new_tokens]
        self.submit(owner, new_tokens, max_tokens, salt)
        tokens, last = [], None
        for _ in range(20000):
            if not self.core.has_work:
                break
            for output in self.step():
                tokens += output.token_ids
                last = output
        assert last is not None and last.usage is not None, "the engine wedged"
        assert tokens == continuation(prompt, len(tokens))
        self.paths[owner] = [*prompt, *tokens]  # the KV of the last token is made by the next turn
        return last.usage.tokens_by_source

    def ask(self, request: CacheRequest) -> CacheResponse:
        self.core.call(CacheCall(7, request))
        for _ in range(20000):
            for answer in self.core.take_answers():
                assert answer.call_id == 7
                self.core.check_integrity()
                return answer.response
            time.sleep(0.0005)
        raise AssertionError("no answer")

    def events(self) -> list[CacheEvent]:
        taken = self.core.take_events()
        return [] if taken is None else taken.events

    def retain(self, owner: str, **retention) -> CacheResponse:
        path = RetainPath(owner=owner, token_ids=self.paths[owner], retention=Retention(**retention))
        return self.ask(path)

    def keys(self, owner: str) -> set[bytes]:
        """The content keys of all whole and half-full blocks of a session's path."""
        prefixes, packed = self.core._cache.prefixes, pack_tokens(self.paths.get(owner, []))
        keys = prefixes.content_keys("", packed)
        size = BLOCK * TOKEN_BYTES
        tails = [
            tail.content_key
            for index, parent in enumerate([None, *keys])
            for tail in prefixes.tail_keys("", parent, packed[index * size : (index + 1) * size])
        ]
        return {*keys, *tails}

    def on_disk(self, keys: set[bytes]) -> set[bytes]:
        """Those of ``keys`` that are on disk, or on their way there."""
        listed = list(keys)
        found = self.core._cache.transfer.tiers[Tier.DISK].contains(listed)
        return {key for key, there in zip(listed, found, strict=True) if there}

    def cached(self, owner: str) -> int:
        """Tokens of the session's path that are on the device."""
        resume = ResumePath(owner="", token_ids=self.paths[owner])
        free = self.core._scheduler.load_ahead
        self.core._scheduler.load_ahead = lambda sequence: None
        try:
            return self.ask(resume).tokens_by_tier["device"]
        finally:
            self.core._scheduler.load_ahead = free


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    made: list[Engine] = []
    yield made
    for engine in made:
        engine.core.close()


def test_a_pinned_path_stays_while_others_come_and_go(engines: list[Engine]) -> None:
    engine = Engine(24)
    engines.append(engine)
    engine.turn("kept", prompt(100))
    outcome = engine.retain("kept", ttl_s=60.0)
    assert (outcome.verdict, outcome.pinned_tokens, outcome.expires_in_s) == (Verdict.ACCEPTED, 102, 60.0)
    for seed in range(1, 8):
        engine.turn(f"other{seed}", prompt(100, seed))
    assert engine.cached("kept") == 102
    engine.now += 61.0
    for seed in range(8, 12):
        engine.turn(f"other{seed}", prompt(100, seed))
    assert engine.cached("kept") < 102


def test_a_released_path_goes_like_any_other(engines: list[Engine]) -> None:
    engine = Engine(24)
    engines.append(engine)
    engine.turn("kept", prompt(100))
    engine.retain("kept")
    assert engine.ask(ReleasePath(owner="kept")) == Done()
    assert engine.ask(ReleasePath(owner="unknown")) == Done()
    for seed in range(1, 5):
        engine.turn(f"other{seed}", prompt(100, seed))
    assert engine.cached("kept") < 100


def test_hard_pins_are_bounded_by_their_budget(engines: list[Engine]) -> None:
    engine = Engine(40, pin_budget=0.25)
    engines.append(engine)
    engine.turn("one", prompt(100))
    engine.turn("two", prompt(100, 1))
    engine.turn("three", prompt(100, 2))
    assert engine.retain("one", hard=True).verdict is Verdict.ACCEPTED
    clipped = engine.retain("two", hard=True)
    assert (clipped.verdict, clipped.pinned_tokens) == (Verdict.CLIPPED, 3 * BLOCK)
    rejected = engine.retain("three", hard=True)
    assert (rejected.verdict, rejected.pinned_tokens) == (Verdict.REJECTED, 0)
    assert "10 blocks" in rejected.reason
    engine.ask(ReleasePath(owner="one"))
    assert engine.retain("three", hard=True).verdict is Verdict.ACCEPTED


def test_a_superseded_branch_goes_first_and_a_shared_one_does_not(engines: list[Engine]) -> None:
    """SGLang #24656, vllm-mlx #766: the live turn was evicted, superseded branches were kept."""
    engine = Engine(38)
    engines.append(engine)
    engine.turn("old", prompt(100, 1))
    engine.turn("rolled back", prompt(100))
    engine.turn("new", prompt(100, 2))
    path = SupersedePath(owner="rolled back", token_ids=engine.paths["rolled back"], from_token=40)
    assert engine.ask(path) == Done()
    for seed in range(3, 6):
        engine.turn(f"other{seed}", prompt(100, seed))
    assert engine.cached("rolled back") == 48
    assert engine.cached("old") == 102


def test_a_suspended_session_gives_its_blocks_back_and_comes_back_warm(engines: list[Engine], tmp_path: Path) -> None:
    engine = Engine(40, host_blocks=20, disk=tmp_path / "kv")
    engines.append(engine)
    engine.turn("one", prompt(200))
    used = engine.core.stats().cached_blocks
    outcome = engine.ask(SuspendPath(owner="one", token_ids=engine.paths["one"]))
    assert outcome.device_blocks_given_back == used == 13
    assert outcome.tokens_by_tier == {"device": 0, "host": 202, "disk": 202}
    assert engine.core.stats().cached_blocks == 0

    estimate = engine.ask(ResumePath(owner="one", token_ids=engine.paths["one"]))
    assert estimate.prefetching
    assert estimate.tokens_by_tier == {"device": 0, "host": 202}
    assert estimate.tokens_to_compute == 1
    assert estimate.seconds > 0
    while engine.core.has_work:
        engine.step()
    sources = engine.turn("one", prompt(5))
    assert (sources.device, sources.computed) == (202, 6)


@pytest.mark.parametrize(("num_blocks", "prefetches"), [(64, True), (30, False)])
def test_a_resume_loads_beside_turns_that_wait_where_there_is_room_for_all(
    engines: list[Engine], num_blocks: int, prefetches: bool
) -> None:
    """A turn that has just come, and waits for the next step, does not stop it; one whose blocks it would take does."""
    engine = Engine(num_blocks, host_blocks=64)
    engines.append(engine)
    engine.turn("one", prompt(200))
    engine.ask(SuspendPath(owner="one", token_ids=engine.paths["one"]))
    engine.submit("two", prompt(300, 5))
    estimate = engine.ask(ResumePath(owner="one", token_ids=engine.paths["one"]))
    assert estimate.tokens_by_tier["host"] == 202
    assert estimate.prefetching is prefetches
    steps = 0
    while engine.core.has_work:
        engine.step()
        steps += 1
        assert steps < 20000, "the engine wedged"
    sources = engine.turn("one", prompt(5))
    assert sources.computed < 20
    assert (sources.device == 202) is prefetches


def test_what_is_never_to_be_persisted_is_suspended_to_memory(engines: list[Engine], tmp_path: Path) -> None:
    engine = Engine(40, host_blocks=20, disk=tmp_path / "kv")
    engines.append(engine)
    engine.persist = False
    engine.turn("one", prompt(200))
    outcome = engine.ask(SuspendPath(owner="one", token_ids=engine.paths["one"], persist=False))
    assert outcome.device_blocks_given_back == 13
    assert outcome.tokens_by_tier["host"] == 202
    assert not outcome.tokens_by_tier.get("disk")


@tried(max_examples=25, deadline=None)
@given(
    turns=st.lists(st.tuples(st.sampled_from(["private", "hidden", "open", "lazy"]), st.integers(1, 60)), max_size=14),
    host_blocks=st.sampled_from([0, 3, 8]),
    suspends=st.sets(st.integers(0, 13)),
)
def test_what_must_not_outlive_the_process_is_never_on_disk(
    turns: list[tuple[str, int]], host_blocks: int, suspends: set[int]
) -> None:
    """Persistence ``none``: not at a turn's end, not under pressure, not by way of host memory or of a session that
    shares its beginning. What another session's KV is, is that one's."""
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(28, host_blocks=host_blocks, disk=Path(folder) / "kv")
        private = {"private": Lifetime.PROCESS, "hidden": Lifetime.PROCESS}
        for number, (owner, length) in enumerate(turns):
            engine.lifetime = private.get(owner, Lifetime.DURABLE)
            engine.persist = owner != "lazy" and owner not in private
            if len(engine.paths.get(owner, [])) + length < 300:
                beginning = [] if owner in engine.paths else prompt(40)
                engine.turn(owner, [*beginning, *prompt(length, number)])
            if number in suspends and owner in engine.paths:
                persist = owner not in private
                engine.ask(SuspendPath(owner=owner, token_ids=engine.paths[owner], persist=persist))
            may = set().union(*(engine.keys(each) for each in engine.paths if each not in private))
            for each in private:
                assert not engine.on_disk(engine.keys(each) - may), f"{each} is on disk after turn {number}"
        engine.core.close()


def test_what_a_private_session_computed_is_written_once_an_open_one_uses_it(
    engines: list[Engine], tmp_path: Path
) -> None:
    engine = Engine(40, host_blocks=20, disk=tmp_path / "kv")
    engines.append(engine)
    engine.persist, engine.lifetime = False, Lifetime.PROCESS
    engine.turn("private", prompt(100))
    assert not engine.on_disk(engine.keys("private"))
    engine.persist, engine.lifetime = True, Lifetime.DURABLE
    sources = engine.turn("open", prompt(90))
    assert sources.device == 89, "within the process they share"
    outcome = engine.ask(PersistPath(owner="open", token_ids=engine.paths["open"]))
    assert outcome.tokens_by_tier["disk"] == len(engine.paths["open"]) - 1


def test_a_path_that_others_use_is_not_given_back(engines: list[Engine], tmp_path: Path) -> None:
    engine = Engine(64, host_blocks=64)
    engines.append(engine)
    engine.turn("one", prompt(100))
    engine.paths["fork"] = engine.paths["one"][:90]
    engine.turn("fork", prompt(50, 3))
    outcome = engine.ask(SuspendPath(owner="one", token_ids=engine.paths["one"]))
    assert outcome.device_blocks_given_back == 2
    assert outcome.tokens_by_tier["device"] == 90, "what the fork uses is on the device as before"
    assert engine.cached("fork") == len(engine.paths["fork"]) - 1


def test_persisting_leaves_the_device_as_it_is(engines: list[Engine], tmp_path: Path) -> None:
    engine = Engine(40, disk=tmp_path / "kv")
    engines.append(engine)
    engine.turn("one", prompt(100))
    outcome = engine.ask(PersistPath(owner="one", token_ids=engine.paths["one"]))
    assert outcome.tokens_by_tier == {"disk": 102}
    assert engine.cached("one") == 102


def test_events_say_what_happened_to_whose_tokens(engines: list[Engine]) -> None:
    engine = Engine(24, host_blocks=100)
    engines.append(engine)
    engine.turn("one", prompt(100))
    (stored,) = engine.events()
    assert (stored.kind, stored.tier, stored.tokens, stored.owner) == (CacheEventKind.STORED, "device", 102, "one")
    engine.retain("one", ttl_s=5.0)
    engine.now += 6.0
    (expired,) = engine.events()
    assert (expired.kind, expired.owner) == (CacheEventKind.EXPIRED, "one")
    for seed in range(1, 4):
        engine.turn(f"other{seed}", prompt(100, seed))
    demoted = [event for event in engine.events() if event.kind is CacheEventKind.DEMOTED]
    assert {event.owner for event in demoted} == {"one"}
    assert sum(event.tokens for event in demoted) == 54, "its last four blocks"
    assert all(event.tier == "host" and len(event.key) == 32 and event.at > 0 for event in demoted)
    engine.turn("one", prompt(3))
    loaded = [event for event in engine.events() if event.kind is CacheEventKind.LOADED]
    assert [(event.tier, event.owner) for event in loaded] == [("host", "one")]


@pytest.mark.parametrize("target", ["host", "device"])
def test_another_machine_goes_on_from_an_export(engines: list[Engine], tmp_path: Path, target: str) -> None:
    """llama.cpp #26676: a restore said 1,947 tokens, the next request hit 14."""
    here = Engine(64, host_blocks=10)
    there = Engine(64, host_blocks=64 if target == "host" else 0)
    engines += [here, there]
    here.turn("one", prompt(200), salt="tenant")
    path = here.paths["one"]
    file = str(tmp_path / "kv")
    outcome = here.ask(ExportPath(owner="one", token_ids=path, cache_salt="tenant", file=file))
    assert outcome.tokens == 202
    assert outcome.num_bytes == (tmp_path / "kv").stat().st_size

    imported = there.ask(ImportPath(owner="two", token_ids=path, cache_salt="another", file=file))
    assert (imported.tokens, imported.tokens_by_tier) == (202, {target: 202})
    there.paths["two"] = path
    sources = there.turn("two", prompt(5), salt="another")
    assert sources.host + sources.device == 202
    assert there.turn("three", [*path, 1], salt="tenant").computed == 204, "it was imported for one tenant only"


def exported(engine: Engine, file: Path) -> list[int]:
    engine.turn("one", prompt(100))
    engine.ask(ExportPath(token_ids=engine.paths["one"], file=str(file)))
    return engine.paths["one"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[: len(content) // 2], "ends inside block"),
        (lambda content: content[:20], "head"),
        (lambda content: content[:5], "holds no KV"),
        (lambda content: b"", "holds no KV"),
        (lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:], "block 6 of"),
        (lambda content: content[:30] + b"x" + content[31:], "head"),
    ],
)
def test_a_damaged_export_is_refused_and_says_where(
    engines: list[Engine], tmp_path: Path, damage, message: str
) -> None:
    engine = Engine(64, host_blocks=64)
    engines.append(engine)
    path = exported(engine, tmp_path / "kv")
    (tmp_path / "kv").write_bytes(damage((tmp_path / "kv").read_bytes()))
    other = Engine(64, host_blocks=64)
    engines.append(other)
    answer = other.ask(ImportPath(token_ids=path, file=str(tmp_path / "kv")))
    assert isinstance(answer, CallFailed)
    assert (answer.kind, answer.field) == (CallError.REQUEST, "file")
    assert message in answer.message
    other.paths["one"] = path
    assert other.turn("one", [3]).total == 104, "the log alone is enough"


def test_an_export_of_another_model_is_refused_with_both_names(engines: list[Engine], tmp_path: Path) -> None:
    engine, other = Engine(64, host_blocks=64), Engine(64, host_blocks=64, weights="others")
    engines += [engine, other]
    path = exported(engine, tmp_path / "kv")
    answer = other.ask(ImportPath(token_ids=path, file=str(tmp_path / "kv")))
    assert isinstance(answer, CallFailed)
    assert "weights w" in answer.message and "others" in answer.message and answer.remedy


def test_an_export_never_replaces_a_file_and_leaves_no_half_of_one(engines: list[Engine], tmp_path: Path) -> None:
    engine = Engine(64)
    engines.append(engine)
    path = exported(engine, tmp_path / "kv")
    before = (tmp_path / "kv").read_bytes()
    again = engine.ask(ExportPath(token_ids=path, file=str(tmp_path / "kv")))
    assert isinstance(again, CallFailed) and "exists" in again.message
    assert (tmp_path / "kv").read_bytes() == before
    nowhere = engine.ask(ExportPath(token_ids=path, file=str(tmp_path / "missing" / "kv")))
    assert isinstance(nowhere, CallFailed) and nowhere.field == "file"
    assert [each.name for each in tmp_path.iterdir()] == ["kv"]


def test_an_export_of_a_longer_path_gives_what_both_share(engines: list[Engine], tmp_path: Path) -> None:
    engine, other = Engine(64, host_blocks=64), Engine(64, host_blocks=64)
    engines += [engine, other]
    path = exported(engine, tmp_path / "kv")
    imported = other.ask(ImportPath(token_ids=[*path[:70], *prompt(30, 5)], file=str(tmp_path / "kv")))
    assert imported.tokens == 64


def test_a_disk_that_hangs_while_it_writes_does_not_hold_a_suspend(
    engines: list[Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessile.sessions.cache.lower_tiers._FLUSH_S", 0.05)
    engine = Engine(40, host_blocks=20, disk=tmp_path / "kv")
    engines.append(engine)
    engine.turn("one", prompt(100))
    lets_go = threading.Event()
    disk = engine.core._cache.transfer.tiers.disk
    write = disk._namespace.segments.write
    monkeypatch.setattr(disk._namespace.segments, "write", lambda *args: (lets_go.wait(60.0), write(*args)))
    engine.turn("one", prompt(100, 2))
    outcome = engine.ask(SuspendPath(owner="one", token_ids=engine.paths["one"]))
    assert outcome.device_blocks_given_back > 0
    assert outcome.tokens_by_tier["host"] == len(engine.paths["one"]) - 1
    lets_go.set()
