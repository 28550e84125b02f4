"""What comes back from a tier is what went there, bit for bit, and so is what the model says next.

SGLang #38031, TRT-LLM #8813, #8274: a round trip through the host tier corrupted KV, or showed another prompt's tokens.
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_llama import VOCAB, make_tiny_llama

from sessile.server.engine.cache_messages import CacheCall, CacheRequest, ExportPath, ImportPath, SuspendPath
from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.lower_tiers import TierSetup, open_lower_tiers
from sessile.server.engine.messages import SubmitTurn, TokensBySource
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.model.registry import LoadedModel, load_model, resolve_model
from sessile.sessions.cache.cost_model import Calibration
from sessile.sessions.cache.token_key import pack_tokens

LOADING_IS_CHEAP = Calibration(prefill=(1.0, 1.0, 0.0), loads={"host": (1e-6, 1e-12), "disk": (1e-6, 1e-12)})
PROMPT = [(7 * i * i + 3 * i) % VOCAB for i in range(203)]
MORE = [5, 9, 77]
pytestmark = pytest.mark.usefixtures("pool")


@pytest.fixture(scope="module", params=["bfloat16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = make_tiny_llama(tmp_path_factory.mktemp("tiny"))
    return load_model(resolve_model(str(folder)), device=torch.device("cpu"), dtype=request.param)


class Engine:
    """An engine core on a real model, which notes the logits of each step's last row."""

    def __init__(self, model: LoadedModel, host: int = 0, disk: Path | None = None) -> None:
        config = EngineConfig(
            kv_memory_bytes=2**20,
            host_memory_bytes=host,
            disk_path="" if disk is None else str(disk),
            disk_quota_bytes=2**22,
            max_batch_tokens=64,
        )
        setup = TierSetup(partial(open_lower_tiers, config), lambda model, kv_cache, lower: LOADING_IS_CHEAP)
        tiers = setup if host or disk else None
        self.core = EngineCore(
            config, model.model, torch.device("cpu"), itertools.count().__next__, model.fingerprint, tiers
        )
        self.logits = np.zeros(0)
        run = self.core._runner.run

        def noted(arrays):
            logits = run(arrays)
            if len(logits):
                self.logits = logits[-1].float().numpy().copy()
            return logits

        self.core._runner.run = noted

    def turn(self, prompt: list[int], salt: str = "") -> tuple[list[int], TokensBySource]:
        params = SamplingParams(temperature=0.0, max_tokens=4)
        self.core.submit(SubmitTurn(turn_id="t", token_ids=prompt, sampling=params, owner="one", cache_salt=salt))
        said, sources = [], None
        while self.core.has_work:
            if self.core.only_waits:
                time.sleep(0.0002)
            for output in self.core.step():
                said += output.token_ids
                sources = output.usage.tokens_by_source if output.usage is not None else sources
        assert sources is not None
        return said, sources

    def ask(self, request: CacheRequest):
        self.core.call(CacheCall(1, request))
        while not (answers := self.core.take_answers()):
            time.sleep(0.0005)
        return answers[0].response

    def kv(self, path: list[int]) -> np.ndarray:
        """The bytes of the path's whole blocks."""
        match = self.core._cache.prefixes.match("", pack_tokens(path))
        return self.core._kv_cache.rows()[match.blocks].copy()

    def spoil_free_blocks(self) -> None:
        """What a free block holds is nobody's business."""
        rows, pool = self.core._kv_cache.rows(), self.core._cache.pool
        for block in range(len(rows)):
            if pool.refcount(block) == 0:
                rows[block] = 0xA5


@pytest.fixture
def cold(model: LoadedModel) -> tuple[list[int], list[int], np.ndarray, np.ndarray]:
    """Of an engine without tiers that computes both turns from nothing: first answer, second answer, KV and logits."""
    first = Engine(model)
    said, _ = first.turn(PROMPT)
    whole = [*PROMPT, *said, *MORE]
    second = Engine(model)
    said_then, sources = second.turn(whole)
    assert sources.computed == len(whole)
    return said, said_then, second.kv(whole), second.logits


@pytest.mark.parametrize("way", ["host", "disk", "restart", "export"])
def test_kv_and_logits_are_the_same_bits_after_a_round_trip(model: LoadedModel, tmp_path: Path, cold, way: str) -> None:
    """vLLM #40896, #5543, #42699: greedy output differed between cold and warm."""
    said, said_then, kv, logits = cold
    engine = Engine(
        model, host=2**20 if way in ("host", "export") else 0, disk=None if way == "host" else tmp_path / "kv"
    )
    assert engine.turn(PROMPT)[0] == said
    path = [*PROMPT, *said]
    if way == "export":
        engine.ask(ExportPath(token_ids=path, file=str(tmp_path / "file")))
        engine.core.close()
        engine = Engine(model, host=2**20)
        assert engine.ask(ImportPath(token_ids=path, file=str(tmp_path / "file"))).tokens == len(path) - 1
    elif way == "restart":
        engine.core.close()
        engine = Engine(model, disk=tmp_path / "kv")
    else:
        assert engine.ask(SuspendPath(owner="one", token_ids=path)).device_blocks_given_back > 12
        engine.spoil_free_blocks()
    whole = [*path, *MORE]
    said_now, sources = engine.turn(whole)
    assert sources.host + sources.disk == len(path) - 1, "to the token"
    assert said_now == said_then
    assert np.array_equal(engine.logits.view(np.int32), logits.view(np.int32))
    assert np.array_equal(engine.kv(whole), kv)
    engine.core.close()


def test_trtllm_8274_another_tenants_prompt_is_never_seen(model: LoadedModel) -> None:
    engine = Engine(model, host=2**20)
    said, _ = engine.turn(PROMPT, salt="one")
    engine.ask(SuspendPath(owner="one", token_ids=[*PROMPT, *said], cache_salt="one"))
    assert engine.turn(PROMPT, salt="two")[1].computed == len(PROMPT)
    assert engine.turn(PROMPT, salt="one")[1].computed < 20
    engine.core.close()
