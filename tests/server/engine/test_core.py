"""The engine's step, driven in process on a fake clock, with a model that shows every misplaced token."""

from __future__ import annotations

import itertools

import pytest
import torch
from checksum_model import VOCAB, ChecksumModel, continuation, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.messages import FinishReason, Priority, SubmitTurn, TurnOutput
from sessile.server.engine.sampling_params import SamplingParams

BLOCK = 16
BLOCK_BYTES = 2 * BLOCK * 2 * 4


class Engine:
    """An engine core, a clock that ticks with each reading, and what came out of it."""

    def __init__(self, num_blocks: int = 64, **config) -> None:
        self.model = ChecksumModel()
        config.setdefault("max_stall_ms", 0.0)  # the clock of these tests counts, it tells no time
        self.core = EngineCore(
            EngineConfig(kv_memory_bytes=num_blocks * BLOCK_BYTES, **config),
            self.model,
            torch.device("cpu"),
            clock=itertools.count().__next__,
        )
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, TurnOutput] = {}

    def submit(self, turn_id: str, prompt: list[int], max_tokens: int = 4, salt: str = "", **sampling) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, **sampling)
        self.core.submit(SubmitTurn(turn_id=turn_id, token_ids=prompt, sampling=params, cache_salt=salt))

    def step(self) -> None:
        for output in self.core.step():
            self.tokens.setdefault(output.turn_id, []).extend(output.token_ids)
            if output.finish_reason is not None:
                assert output.turn_id not in self.last, "a turn ended twice"
                self.last[output.turn_id] = output
        self.core.check_integrity()

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("the engine wedged")

    def complete(self, turn_id: str, prompt: list[int], **kwargs) -> TurnOutput:
        self.submit(turn_id, prompt, **kwargs)
        self.run()
        return self.last[turn_id]


def test_a_turn_gets_the_models_tokens() -> None:
    engine = Engine()
    last = engine.complete("a", prompt(40), max_tokens=30)
    assert engine.tokens["a"] == continuation(prompt(40), 30)
    assert last.finish_reason is FinishReason.LENGTH
    assert last.usage.prompt_tokens == last.usage.tokens_by_source.computed == 40
    assert last.usage.completion_tokens == 30


def test_the_next_turn_computes_only_what_is_new() -> None:
    engine = Engine()
    engine.complete("a", prompt(40), max_tokens=30)
    longer = prompt(40) + engine.tokens["a"] + [1, 2, 3]
    last = engine.complete("b", longer)
    assert engine.tokens["b"] == continuation(longer, 4)
    sources = last.usage.tokens_by_source
    assert sources.device == 69, "all but the last sampled token, whose KV was never computed"
    assert sources.total == len(longer)


def test_a_repeated_prompt_computes_one_token() -> None:
    engine = Engine()
    engine.complete("a", prompt(40))
    assert engine.complete("b", prompt(40)).usage.tokens_by_source.computed == 1
    assert engine.tokens["a"] == engine.tokens["b"]


def test_tenants_share_nothing() -> None:
    engine = Engine()
    engine.complete("a", prompt(40), salt="one")
    assert engine.complete("b", prompt(40), salt="two").usage.tokens_by_source.device == 0


@pytest.mark.parametrize("budget", [1, 7, 16, 64, 512])
def test_chunks_of_any_size_give_the_same_tokens(budget: int) -> None:
    engine = Engine(max_batch_tokens=budget, max_sequences=1)
    engine.complete("a", prompt(100), max_tokens=20)
    assert engine.tokens["a"] == continuation(prompt(100), 20)
    assert max(engine.model.computed) <= budget


@pytest.mark.parametrize("shared", [3, 20, 47, 61])
def test_a_prompt_that_fills_the_pool_runs_beside_a_similar_one_in_the_cache(shared: int) -> None:
    engine = Engine(num_blocks=4)
    first = prompt(63)
    engine.complete("a", first, max_tokens=1)
    second = first[:shared] + [(token + 1) % VOCAB for token in first[shared:]]
    last = engine.complete("b", second, max_tokens=1)
    assert engine.tokens["b"] == continuation(second, 1)
    sources = last.usage.tokens_by_source
    assert sources.device + sources.computed == 63


def test_a_prefix_being_computed_is_computed_once() -> None:
    engine = Engine(max_batch_tokens=32, max_sequences=32)
    shared = prompt(200)
    for name in "abcdef":
        engine.submit(name, [*shared, ord(name) % VOCAB])
    engine.run()
    for name in "abcdef":
        assert engine.tokens[name] == continuation([*shared, ord(name) % VOCAB], 4)
        assert engine.last[name].usage.tokens_by_source.total == 201
    computed = [engine.last[name].usage.tokens_by_source.computed for name in "abcdef"]
    assert sorted(computed)[:5] == [9] * 5, "the rest of a block, and the own token"
    assert engine.last["f"].usage.tokens_by_source.in_flight == 192


def test_those_who_share_go_on_when_the_leader_is_aborted() -> None:
    engine = Engine(max_batch_tokens=32, max_sequences=32)
    engine.submit("a", prompt(200))
    engine.submit("b", [*prompt(200), 5])
    engine.step()
    engine.core.abort("a")
    engine.run()
    assert engine.last["a"].finish_reason is FinishReason.ABORTED
    assert engine.tokens["b"] == continuation([*prompt(200), 5], 4)
    assert engine.last["b"].usage.tokens_by_source.in_flight == 32, "what the aborted turn computed is kept"


def test_preempted_turns_end_with_the_same_tokens_and_count_once() -> None:
    engine = Engine(num_blocks=12)
    for seed in range(5):
        engine.submit(str(seed), prompt(30, seed), max_tokens=60)
    engine.run()
    assert engine.core.stats().preemptions > 0
    for seed in range(5):
        assert engine.tokens[str(seed)] == continuation(prompt(30, seed), 60)
        assert engine.last[str(seed)].usage.tokens_by_source.total == 30
    assert engine.core.stats().prompt_tokens_by_source.total == 150


def test_stop_tokens_end_the_turn_and_belong_to_it() -> None:
    engine = Engine()
    expected = continuation(prompt(40), 30)
    stop = expected[10]
    last = engine.complete("a", prompt(40), max_tokens=30, stop_token_ids=(stop,))
    assert engine.tokens["a"] == expected[: expected.index(stop) + 1]
    assert last.finish_reason is FinishReason.STOP


def test_the_models_end_of_turn_ends_the_turn_unless_it_is_ignored() -> None:
    expected = continuation(prompt(40), 30)
    end = expected[10]
    for ignored, tokens in ((False, expected[: expected.index(end) + 1]), (True, expected)):
        engine = Engine()
        sampling = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=ignored)
        engine.core.submit(SubmitTurn(turn_id="a", token_ids=prompt(40), sampling=sampling, eos_token_ids=(end,)))
        engine.run()
        assert engine.tokens["a"] == tokens
        assert engine.last["a"].finish_reason is (FinishReason.LENGTH if ignored else FinishReason.STOP)


def test_min_tokens_bars_stop_tokens() -> None:
    engine = Engine()
    stop = continuation(prompt(40), 1)[0]
    engine.complete("a", prompt(40), max_tokens=8, min_tokens=8, stop_token_ids=(stop,))
    assert len(engine.tokens["a"]) == 8
    assert stop not in engine.tokens["a"][:8]


def test_an_aborted_turn_frees_its_blocks_and_keeps_what_is_computed() -> None:
    engine = Engine(max_batch_tokens=32, max_sequences=1)
    engine.submit("a", prompt(300))
    engine.step()
    engine.step()
    engine.core.abort("a")
    engine.step()
    assert engine.last["a"].finish_reason is FinishReason.ABORTED
    assert engine.core.stats().used_blocks == 0
    assert engine.complete("b", prompt(300)).usage.tokens_by_source.device == 64
    assert not engine.core.has_work


def test_the_context_bounds_a_turn_without_max_tokens() -> None:
    engine = Engine(num_blocks=8)
    engine.core.submit(SubmitTurn(turn_id="a", token_ids=prompt(100), sampling=SamplingParams(temperature=0.0)))
    engine.run()
    assert len(engine.tokens["a"]) == 28
    assert engine.last["a"].finish_reason is FinishReason.LENGTH


def test_decodes_bound_the_prefill_of_a_step() -> None:
    engine = Engine(max_prefill_tokens_while_decoding=8)
    engine.submit("a", prompt(20), max_tokens=50)
    engine.step()
    engine.submit("b", prompt(200, seed=3))
    for _ in range(5):
        engine.step()
    assert engine.model.computed[1:6] == [9] * 5


def test_interactive_turns_go_first() -> None:
    engine = Engine(max_sequences=1)
    for turn_id, priority in (("batch", Priority.BATCH), ("chat", Priority.INTERACTIVE)):
        engine.core.submit(
            SubmitTurn(
                turn_id=turn_id,
                token_ids=prompt(20),
                sampling=SamplingParams(temperature=0.0, max_tokens=2),
                priority=priority,
            )
        )
    engine.run()
    assert list(engine.last) == ["chat", "batch"]


def test_python_work_of_a_step_does_not_grow_with_the_context() -> None:
    """Counts the Python function calls of a decode step at two lengths of context."""
    import sys

    def calls_of_a_step(length: int) -> int:
        engine = Engine(num_blocks=400)
        engine.submit("a", prompt(length), max_tokens=100)
        engine.core.step()
        while not engine.tokens.get("a"):
            engine.step()
        count = 0

        def tracer(frame, event, argument):
            nonlocal count
            count += event in ("call", "c_call")

        engine.core.step()
        sys.setprofile(tracer)
        engine.core.step()
        sys.setprofile(None)
        return count

    assert calls_of_a_step(100) == calls_of_a_step(3000 // 16 * 16 + 4)


TURNS = st.lists(
    st.tuples(
        st.integers(0, 3),  # which shared prefix
        st.integers(1, 70),  # prompt length
        st.integers(1, 40),  # tokens to sample
        st.integers(0, 12),  # steps before the next turn comes
        st.booleans(),  # aborted before the next turn comes
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=120, deadline=None)
@given(turns=TURNS, num_blocks=st.integers(8, 20), budget=st.integers(4, 64))
def test_any_load_on_a_small_pool_gives_each_turn_its_own_tokens(turns, num_blocks: int, budget: int) -> None:
    engine = Engine(num_blocks=num_blocks, max_batch_tokens=budget, max_sequences=4)
    expected: dict[str, list[int]] = {}
    for index, (family, length, count, steps, aborted) in enumerate(turns):
        tokens = prompt(length, family)
        expected[str(index)] = continuation(tokens, min(count, engine.core.context_length - length))
        engine.submit(str(index), tokens, max_tokens=count)
        for _ in range(steps):
            engine.step()
        if aborted:
            engine.core.abort(str(index))
    engine.run()
    for turn_id, tokens in expected.items():
        last, got = engine.last[turn_id], engine.tokens.get(turn_id, [])
        assert got == tokens[: len(got)]
        assert last.finish_reason is FinishReason.ABORTED or got == tokens
        assert last.usage.tokens_by_source.total == last.usage.prompt_tokens
    stats = engine.core.stats()
    assert stats.used_blocks == 0
    assert stats.free_blocks + stats.cached_blocks == num_blocks


def test_a_prompt_that_takes_the_whole_pool_is_admitted_beside_a_half_shared_block() -> None:
    """The block to copy from is one of those that the turn needs: it must not wait for a block that nobody gives."""
    engine = Engine(num_blocks=8)
    engine.complete("a", prompt(10), max_tokens=1)
    longer = [*prompt(10), *prompt(112, seed=5)]
    assert engine.complete("b", longer).usage.tokens_by_source.computed == 122
    assert engine.tokens["b"] == continuation(longer, 4)


def test_a_turn_that_fits_goes_on_when_the_one_before_it_did_not_fit_and_is_gone() -> None:
    engine = Engine(num_blocks=10)
    engine.submit("runs", prompt(60), max_tokens=40)
    engine.step()
    engine.submit("large", prompt(120, 1))
    for _ in range(20):  # until it is due before all that comes later
        engine.step()
    engine.submit("small", prompt(20, 2), max_tokens=1)
    engine.step()
    assert "small" not in engine.last
    engine.core.abort("large")
    engine.step()
    assert "small" in engine.last


def test_a_more_urgent_turn_does_not_wait_for_one_that_does_not_fit() -> None:
    engine = Engine(num_blocks=10)
    engine.submit("runs", prompt(60), max_tokens=40)
    engine.step()
    sampling = SamplingParams(temperature=0.0, max_tokens=1)
    for turn_id, tokens, priority in (
        ("large", prompt(120, 1), Priority.BATCH),
        ("small", prompt(20, 2), Priority.INTERACTIVE),
    ):
        engine.core.submit(SubmitTurn(turn_id=turn_id, token_ids=tokens, sampling=sampling, priority=priority))
        engine.step()
    assert "small" in engine.last


def test_many_that_wait_for_one_prefix_are_counted_until_they_start_or_end() -> None:
    engine = Engine(num_blocks=400, max_prefill_tokens_while_decoding=512)
    for index in range(20):
        engine.submit(f"decodes {index}", prompt(1, index), max_tokens=500)
    for _ in range(3):
        engine.step()
    for index in range(30):
        engine.submit(f"waits {index}", [*prompt(600, 40), index])
    engine.step()
    engine.step()
    stats = engine.core.stats()
    assert stats.waiting == 29 and stats.queues[Priority.INTERACTIVE].waiting == 29
    for index in range(1, 30):
        engine.core.abort(f"waits {index}")
    engine.step()
    left = engine.core.stats().queues[Priority.INTERACTIVE]
    assert (left.waiting, left.waiting_tokens, left.started) == (0, 0, 21)
