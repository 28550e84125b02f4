"""The whole engine on a GPU that is not there, with a host tier: look-ahead, graphs, and blocks that leave and come
back beside the steps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from fake_device import FakeDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from summing_model import VOCAB, SummingModel, continuation

from sessile.server.engine import core as core_module
from sessile.server.engine.core import EngineCore
from sessile.server.engine.device.parts import gpu_parts
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.lower_tiers import TierSetup, open_lower_tiers
from sessile.server.engine.messages import SubmitTurn
from sessile.server.engine.sampling_params import SamplingParams
from sessile.sessions.cache.cost_model import Calibration

BLOCK_BYTES = SummingModel().kv_layout(16).block_bytes
NUM_BLOCKS = 64  # the least that a GPU starts with
LOADING_IS_CHEAP = Calibration(prefill=(1.0, 1.0, 0.0), loads={"host": (1e-6, 1e-12)})


def in_order(device: FakeDevice, launches: Callable[..., Any]) -> Callable[..., Any]:
    """``launches``, which the device does not delay, after all that it did delay."""

    def launched(*arguments: Any) -> Any:
        device.finish_steps()
        return launches(*arguments)

    return launched


def engine_of(num_blocks: int) -> EngineCore:
    """Of ``num_blocks``: what a pool has beyond them is somebody else's."""
    config = EngineConfig(
        kv_memory_bytes=NUM_BLOCKS * BLOCK_BYTES,
        host_memory_bytes=200 * BLOCK_BYTES,
        max_batch_tokens=32,
        max_sequences=4,
    )
    device = FakeDevice()
    parts = gpu_parts(config, SummingModel(), device, lambda stage, fraction: None)
    for part, name in ((parts.runner, "launch_without_graph"), (parts.kv_cache, "copy")):
        setattr(part, name, in_order(device, getattr(part, name)))
    tiers = TierSetup(partial(open_lower_tiers, config), lambda model, kv_cache, lower: LOADING_IS_CHEAP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_module, "device_parts", lambda *arguments: parts)
        core = EngineCore(config, SummingModel(), torch.device("cpu"), itertools.count().__next__, "w", tiers)
    assert core._cache.pool.allocate(NUM_BLOCKS - num_blocks) is not None
    core.num_blocks = num_blocks
    return core


def run(core: EngineCore, tokens: dict[str, list[int]], steps: int) -> None:
    """Up to ``steps`` steps."""
    for _ in range(steps):
        if not core.has_work:
            return
        if core.only_waits:
            time.sleep(0.0005)  # a real thread loads
        for output in core.step():
            tokens[output.turn_id].extend(output.token_ids)
        core.check_integrity()


def prompt_of(family: int, length: int) -> list[int]:
    return [(family * 31 + i * i + 5 * i) % VOCAB for i in range(length)]


def test_what_leaves_the_pool_comes_back() -> None:
    core, tokens = engine_of(10), dict[str, list[int]]()
    for number, family in enumerate([0, 1, 2, 3, 0, 1]):
        tokens[str(number)] = []
        params = SamplingParams(temperature=0.0, max_tokens=8)
        core.submit(SubmitTurn(turn_id=str(number), token_ids=prompt_of(family, 50), sampling=params))
        run(core, tokens, 400)
        core._cache.transfer._pool.settle()
        assert tokens[str(number)] == continuation(prompt_of(family, 50), 8)
    assert core.stats().prompt_tokens_by_source.host >= 48
    core.close()


@settings(max_examples=12, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 50), st.integers(1, 13), st.integers(0, 6), st.booleans()),
        min_size=2,
        max_size=8,
    ),
    num_blocks=st.integers(5, 12),
)
def test_any_load_over_a_small_pool_gives_each_turn_its_own_tokens(
    turns: list[tuple[int, int, int, int, bool]], num_blocks: int
) -> None:
    core, tokens, wanted, aborted = engine_of(num_blocks), dict[str, list[int]](), dict[str, list[int]](), set[str]()
    for number, (family, length, count, steps, abort) in enumerate(turns):
        turn_id, prompt = str(number), prompt_of(family, length)
        tokens[turn_id], wanted[turn_id] = [], continuation(prompt, count)
        params = SamplingParams(temperature=0.0, max_tokens=count)
        core.submit(SubmitTurn(turn_id=turn_id, token_ids=prompt, sampling=params))
        run(core, tokens, steps)
        if abort:
            core.abort(turn_id)
            aborted.add(turn_id)
    run(core, tokens, 5000)
    assert not core.has_work, "the engine wedged"
    for turn_id, came in tokens.items():
        assert came == wanted[turn_id][: len(came)]
        assert turn_id in aborted or came == wanted[turn_id]
    core.close()
