"""Turns that lose their place, on the engine's step with tiers below the pool: nothing lost, nothing counted twice."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from functools import partial

import torch
from checksum_model import ChecksumModel, continuation, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from sessile.server.engine.block_loads import BlockLoad
from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.lower_tiers import TierSetup, open_lower_tiers
from sessile.server.engine.messages import FinishReason, Priority, SubmitTurn, TurnOutput
from sessile.server.engine.sampling_params import SamplingParams
from sessile.sessions.cache.cost_model import Calibration

BLOCK_BYTES = 2 * 16 * 2 * 4
LOADING_IS_CHEAP = Calibration(prefill=(1.0, 1.0, 0.0), loads={"host": (1e-6, 1e-12)})


class Engine:
    """An engine core with a host tier; loads are done at once."""

    def __init__(self, num_blocks: int, host_blocks: int = 400, **config) -> None:
        made = EngineConfig(
            kv_memory_bytes=num_blocks * BLOCK_BYTES,
            host_memory_bytes=host_blocks * BLOCK_BYTES,
            **{"max_stall_ms": 0.0, **config},
        )
        tiers = TierSetup(partial(open_lower_tiers, made), lambda model, kv_cache, tiers: LOADING_IS_CHEAP)
        clock = itertools.count().__next__
        self.core = EngineCore(made, ChecksumModel(), torch.device("cpu"), clock, "w", tiers)
        assert self.core._cache.transfer is not None
        self.transfer = self.core._cache.transfer
        self.start_loads_with(self.load)
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, TurnOutput] = {}

    def load(self, load: BlockLoad) -> None:
        """Do a load now."""
        threads = self.transfer._threads
        threads._ended.put(threads._load(load))

    def start_loads_with(self, start: Callable[[BlockLoad], None]) -> None:
        """Let ``start`` take the place of the I/O thread."""
        self.transfer._threads._local.put = start

    def submit(self, turn_id: str, prompt: list[int], max_tokens: int = 4, **fields) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        self.core.submit(SubmitTurn(turn_id=turn_id, token_ids=prompt, sampling=sampling, **fields))

    def step(self) -> None:
        for output in self.core.step():
            self.tokens.setdefault(output.turn_id, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.last[output.turn_id] = output
        self.core.check_integrity()

    def run(self) -> None:
        for _ in range(5000):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("the engine wedged")


def test_a_preempted_turn_comes_back_from_host() -> None:
    """Its blocks are pushed out of the pool by the turn that took its place, and are loaded again, not computed."""
    engine = Engine(num_blocks=24, max_sequences=1)
    engine.submit("offline", prompt(200), max_tokens=40, priority=Priority.BATCH)
    for _ in range(10):
        engine.step()
    computed = sum(engine.core._runner._model.computed)
    engine.submit("chat", prompt(300, 7), max_tokens=2)
    engine.run()
    assert engine.last["offline"].usage.preemptions == 1
    assert list(engine.last) == ["chat", "offline"]
    for turn_id, tokens in (("offline", prompt(200)), ("chat", prompt(300, 7))):
        assert engine.tokens[turn_id] == continuation(tokens, len(engine.tokens[turn_id]))
    (host,) = engine.core.stats().tiers
    assert host.events["hits"] >= 8, "the other turn took 19 of 24 blocks"
    again = sum(engine.core._runner._model.computed) - computed - 300 - 1 - 31
    assert again <= 16, "of what it had, less than a block is computed again"
    engine.core.close()


def test_vllm_25780_43736_a_preempted_turn_is_counted_once() -> None:
    """Preempted and retried requests were counted as hits: 32% shown, 0.2% true."""
    engine = Engine(num_blocks=12, host_blocks=100)
    for seed in range(5):
        engine.submit(str(seed), prompt(30, seed), max_tokens=60)
    engine.run()
    assert engine.core.stats().preemptions > 0
    for seed in range(5):
        assert engine.tokens[str(seed)] == continuation(prompt(30, seed), 60)
        assert engine.last[str(seed)].usage.tokens_by_source.computed == 30
    assert engine.core.stats().prompt_tokens_by_source.total == 150
    assert engine.core.stats().prompt_tokens_by_source.cached == 0
    engine.core.close()


def test_vllm_49439_resumed_turns_that_wait_hold_no_blocks() -> None:
    """All resumed sessions waited while they held the blocks that each of them needed."""
    engine = Engine(num_blocks=40, host_blocks=2000)
    for seed in range(8):  # each fits alone, two do not fit together
        engine.submit(f"first {seed}", prompt(340, seed), max_tokens=2)
    engine.run()
    longer = {seed: prompt(340, seed) + engine.tokens[f"first {seed}"] for seed in range(8)}
    for seed in range(8):
        engine.submit(f"resumed {seed}", longer[seed], max_tokens=100)
    held_by_waiting = []
    for _ in range(5000):
        if not engine.core.has_work:
            break
        engine.step()
        held_by_waiting += [each for each in engine.core._scheduler.waiting if each.held is not None]
    assert not held_by_waiting
    assert not engine.core.has_work
    for seed in range(8):
        assert engine.tokens[f"resumed {seed}"] == continuation(longer[seed], 100)
    assert engine.core.stats().used_blocks == 0
    engine.core.close()


def test_ds4_333_xinfer_482_mlx_serve_255_a_disconnect_in_mid_prefill_keeps_what_is_computed() -> None:
    """A disconnect in mid-prefill lost all work."""
    engine = Engine(num_blocks=64, max_batch_tokens=80, max_sequences=4)
    engine.submit("gone", prompt(400))
    for _ in range(3):
        engine.step()
    engine.core.abort("gone")
    assert engine.core.stats().used_blocks == 0, "at once, not with the next step"
    engine.step()
    assert engine.last["gone"].finish_reason is FinishReason.ABORTED
    engine.submit("again", prompt(400))
    engine.run()
    assert engine.last["again"].usage.tokens_by_source.device == 240
    assert engine.tokens["again"] == continuation(prompt(400), 4)
    engine.core.close()


def test_a_disconnect_while_blocks_are_loaded_keeps_them() -> None:
    engine = Engine(num_blocks=30, max_sequences=4)
    engine.submit("first", prompt(300), max_tokens=1)
    engine.submit("second", prompt(400, 7), max_tokens=1)
    engine.run()
    wanted: list[BlockLoad] = []
    engine.start_loads_with(wanted.append)  # the I/O thread has not begun
    engine.submit("gone", prompt(300), max_tokens=1)
    engine.step()
    (load,) = wanted
    engine.core.abort("gone")
    engine.step()
    assert engine.last["gone"].finish_reason is FinishReason.ABORTED
    engine.load(load)
    engine.run()
    assert engine.core.stats().used_blocks == 0
    engine.start_loads_with(engine.load)
    engine.submit("again", prompt(300), max_tokens=1)
    engine.run()
    assert engine.last["again"].usage.tokens_by_source.device >= 16 * (len(load.block_ids) + load.first_block)
    engine.core.close()


def test_those_who_share_a_prefix_go_on_when_its_leader_loads_for_ever() -> None:
    engine = Engine(num_blocks=60, max_sequences=4)
    engine.submit("first", prompt(300), max_tokens=1)
    engine.run()
    for seed in range(1, 4):
        engine.submit(f"pushes {seed}", prompt(300, seed), max_tokens=1)
        engine.run()
    wanted: list[BlockLoad] = []
    engine.start_loads_with(lambda load: engine.load(load) if wanted else wanted.append(load))  # the first hangs
    engine.transfer.load_of = _late(engine.transfer.load_of)
    engine.submit("leads", [*prompt(300), 5], max_tokens=1)
    engine.submit("follows", [*prompt(300), 6], max_tokens=1)
    for _ in range(10):
        engine.step()
    assert engine.tokens["follows"] == continuation([*prompt(300), 6], 1)
    assert "leads" not in engine.last
    engine.load(wanted[0])
    engine.run()
    assert engine.tokens["leads"] == continuation([*prompt(300), 5], 1)
    engine.core.close()


@settings(max_examples=40, deadline=None)
@given(
    turns=st.lists(
        st.builds(
            dict,
            family=st.integers(0, 3),  # which shared prefix
            length=st.integers(1, 90),
            max_tokens=st.integers(1, 40),
            steps=st.integers(0, 8),  # before the next turn comes
            aborted=st.booleans(),  # before the next turn comes
            tenant=st.sampled_from("abc"),
            priority=st.sampled_from(Priority),
            deadline_s=st.sampled_from([None, None, 40.0]),
        ),
        min_size=1,
        max_size=12,
    ),
    num_blocks=st.integers(9, 24),
    host_blocks=st.integers(1, 60),
    places=st.integers(1, 4),
    loads_hang=st.booleans(),
)
def test_any_load_of_classes_and_tenants_gives_each_turn_its_own_tokens(
    turns, num_blocks: int, host_blocks: int, places: int, loads_hang: bool
) -> None:
    """Small pools, so turns are preempted for blocks, for places and for classes, and come back from host; a load may
    take a few steps. Whatever ends has its own tokens, nothing waits for ever, nothing leaks."""
    engine = Engine(num_blocks, host_blocks, max_sequences=places, max_batch_tokens=40, batch_patience_s=300.0)
    late: list[BlockLoad] = []
    if loads_hang:
        engine.start_loads_with(late.append)
    for index, turn in enumerate(turns):
        tokens = prompt(turn["length"], turn["family"])
        fields = {name: turn[name] for name in ("tenant", "priority", "deadline_s")}
        engine.submit(str(index), tokens, min(turn["max_tokens"], engine.core.context_length - len(tokens)), **fields)
        for _ in range(turn["steps"]):
            engine.step()
            if late and index % 2:
                engine.load(late.pop(0))
        if turn["aborted"]:
            engine.core.abort(str(index))
    engine.start_loads_with(engine.load)
    for load in late:
        engine.load(load)
    engine.run()
    for index, turn in enumerate(turns):
        tokens = prompt(turn["length"], turn["family"])
        last, got = engine.last[str(index)], engine.tokens.get(str(index), [])
        assert got == continuation(tokens, len(got))
        if last.finish_reason is FinishReason.EXPIRED:
            assert turn["deadline_s"] is not None
        elif last.finish_reason is not FinishReason.ABORTED:
            assert len(got) == min(turn["max_tokens"], engine.core.context_length - len(tokens))
        assert last.usage is not None and last.usage.tokens_by_source.total == len(tokens)
    stats = engine.core.stats()
    assert stats.used_blocks == 0 and stats.waiting == 0
    engine.core.close()


def _late(load_of):
    """Loads whose time is over when they begin."""
    return lambda *arguments: dataclasses.replace(load_of(*arguments), deadline=time.monotonic())
