"""Drafts of any kind, right or wrong, never change what a turn says, and leave no block behind."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from checksum_model import VOCAB, ChecksumModel, continuation, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.messages import FinishReason, SubmitTurn, TurnOutput
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.speculation.drafter import Branches, Drafter, DraftRequest, NoDrafts

BLOCK_BYTES = 2 * 16 * 2 * 4


class GuessingDrafter(NoDrafts):
    """Drafts of a random length, of which a random part is right. It may guess more than was asked for."""

    def __init__(self, seed: int, longest: int, rightness: float = 0.8, most_branches: int = 1) -> None:
        self._most = most_branches
        self._random = random.Random(seed)
        self._longest = longest
        self._rightness = rightness

    def draft(self, requests: list[DraftRequest], budget: int) -> list[Branches]:
        return [
            tuple(self._guess(request.sequence.token_ids.tolist()) for _ in range(self._random.randint(0, self._most)))
            for request in requests
        ]

    def _guess(self, tokens: list[int]) -> tuple[int, ...]:
        right = continuation(tokens, self._random.randint(0, self._longest))
        return tuple(
            token if self._random.random() < self._rightness else self._random.randrange(VOCAB) for token in right
        )


class Engine:
    """An engine core with a drafter, and what came out of it."""

    def __init__(self, drafter: Drafter | None, num_blocks: int = 64, **config: int) -> None:
        self.model = ChecksumModel()
        self.core = EngineCore(
            EngineConfig(kv_memory_bytes=num_blocks * BLOCK_BYTES, **config),
            self.model,
            torch.device("cpu"),
            clock=itertools.count().__next__,
            drafter=None if drafter is None else lambda runner, kv_cache: drafter,
        )
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, TurnOutput] = {}

    def submit(self, turn_id: str, prompt: list[int], max_tokens: int, **sampling) -> None:
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, **sampling})
        self.core.submit(SubmitTurn(turn_id=turn_id, token_ids=prompt, sampling=params))

    def step(self) -> None:
        for output in self.core.step():
            self.tokens.setdefault(output.turn_id, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.last[output.turn_id] = output
        self.core.check_integrity()

    def run(self) -> None:
        for _ in range(3000):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("the engine wedged")


def test_right_drafts_save_steps_and_are_counted() -> None:
    right = Oracle(3)
    engine = Engine(right)
    engine.submit("a", prompt(40), max_tokens=41)
    engine.run()
    assert engine.tokens["a"] == continuation(prompt(40), 41)
    assert engine.core.stats().steps == 1 + 40 // 4, "the first token, then four a step"
    usage = engine.last["a"].usage
    assert usage.drafted_tokens == usage.accepted_tokens == 30
    assert right.asked == 10


class Oracle(NoDrafts):
    def __init__(self, length: int) -> None:
        self._length = length
        self.asked = 0

    def draft(self, requests: list[DraftRequest], budget: int) -> list[Branches]:
        self.asked += 1
        return [(tuple(continuation(r.sequence.token_ids.tolist(), self._length)),) for r in requests]


def test_drafts_that_cross_block_borders_and_are_rejected_leave_no_block() -> None:
    engine = Engine(GuessingDrafter(seed=1, longest=40, rightness=0.0))
    engine.submit("a", prompt(30), max_tokens=50)
    while engine.core.has_work:
        engine.step()
        held = [s.held for s in engine.core._scheduler.running if s.held is not None]
        assert all(len(h.block_ids) <= (30 + len(engine.tokens["a"])) // 16 + 1 for h in held)
    assert engine.tokens["a"] == continuation(prompt(30), 50)
    usage = engine.last["a"].usage
    assert usage.drafted_tokens > usage.accepted_tokens


def test_a_stop_token_in_mid_draft_ends_the_turn_there() -> None:
    expected = continuation(prompt(40), 60)
    stop = expected[9]
    engine = Engine(Oracle(7))
    engine.submit("a", prompt(40), max_tokens=60, stop_token_ids=(stop,))
    engine.run()
    assert engine.tokens["a"] == expected[: expected.index(stop) + 1]
    assert engine.last["a"].finish_reason is FinishReason.STOP
    assert engine.core.stats().used_blocks == 0


def test_min_tokens_bars_stop_tokens_behind_drafts() -> None:
    plain, drafting = Engine(None), Engine(GuessingDrafter(seed=3, longest=6))
    stop = continuation(prompt(40), 3)[2]
    for engine in (plain, drafting):
        engine.submit("a", prompt(40), max_tokens=20, min_tokens=12, stop_token_ids=(stop,))
        engine.run()
    assert plain.tokens == drafting.tokens


@pytest.mark.parametrize("budget", [5, 6, 9])
def test_drafts_keep_to_the_budget_of_a_step(budget: int) -> None:
    engine = Engine(Oracle(8), max_batch_tokens=budget, max_sequences=3)
    for seed in range(3):
        engine.submit(str(seed), prompt(20, seed), max_tokens=40)
    engine.run()
    assert max(engine.model.computed) <= budget
    for seed in range(3):
        assert engine.tokens[str(seed)] == continuation(prompt(20, seed), 40)


def test_drafts_preempt_nobody() -> None:
    """A pool in which all turns just fit: each draft would have to take another's block."""
    engine = Engine(GuessingDrafter(seed=5, longest=50, rightness=0.3), num_blocks=12)
    for seed in range(3):
        engine.submit(str(seed), prompt(30, seed), max_tokens=34)
    engine.run()
    assert engine.core.stats().preemptions == 0
    for seed in range(3):
        assert engine.tokens[str(seed)] == continuation(prompt(30, seed), 34)


def test_of_several_guesses_the_right_one_is_taken() -> None:
    class WrongThenRight(NoDrafts):
        def draft(self, requests: list[DraftRequest], budget: int) -> list[Branches]:
            right = [tuple(continuation(r.sequence.token_ids.tolist(), 3)) for r in requests]
            return [(((r[0] + 1) % VOCAB, 5), ((r[0] + 2) % VOCAB, 6), r) for r in right]

    for length in (31, 32, 33, 40):  # the branch's first block: half full, just full, empty
        engine = Engine(WrongThenRight())
        engine.submit("a", prompt(length), max_tokens=41)
        engine.run()
        assert engine.tokens["a"] == continuation(prompt(length), 41)
        assert engine.core.stats().steps == 1 + 40 // 4
        assert engine.last["a"].usage.accepted_tokens == 30
        longer = [*prompt(length), *engine.tokens["a"], 1, 2]
        engine.submit("b", longer, max_tokens=5)
        engine.run()
        assert engine.tokens["b"] == continuation(longer, 5), "what branches computed is in the tree"
        assert engine.last["b"].usage.tokens_by_source.device == length + 40


def test_the_tree_never_sees_rejected_drafts() -> None:
    engine = Engine(GuessingDrafter(seed=7, longest=20, rightness=0.6))
    engine.submit("a", prompt(40), max_tokens=60)
    engine.run()
    longer = prompt(40) + engine.tokens["a"]
    engine.submit("b", [*longer, 1, 2, 3], max_tokens=8)
    engine.run()
    assert engine.tokens["b"] == continuation([*longer, 1, 2, 3], 8)
    assert engine.last["b"].usage.tokens_by_source.device == len(longer) - 1


TURNS = st.lists(
    st.tuples(
        st.integers(0, 3),  # which shared prefix
        st.integers(1, 70),  # prompt length
        st.integers(1, 40),  # tokens to sample
        st.integers(0, 12),  # steps before the next turn comes
        st.booleans(),  # aborted before the next turn comes
        st.booleans(),  # stops at a token that it is known to say
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=60, deadline=None)
@given(
    turns=TURNS,
    num_blocks=st.integers(8, 20),
    budget=st.integers(4, 64),
    seed=st.integers(0, 10**6),
    longest=st.integers(0, 50),
    rightness=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    branches=st.integers(1, 3),
)
def test_any_drafts_on_a_small_pool_leave_each_turn_its_own_tokens(
    turns, num_blocks: int, budget: int, seed: int, longest: int, rightness: float, branches: int
) -> None:
    drafter = GuessingDrafter(seed, longest, rightness, branches)
    engine = Engine(drafter, num_blocks=num_blocks, max_batch_tokens=budget, max_sequences=4)
    expected: dict[str, list[int]] = {}
    for index, (family, length, count, steps, aborted, stops) in enumerate(turns):
        tokens = prompt(length, family)
        expected[str(index)] = said = continuation(tokens, min(count, engine.core.context_length - length))
        stop = (said[len(said) // 2],) if stops else ()
        if stop:
            expected[str(index)] = said[: said.index(stop[0]) + 1]
        engine.submit(str(index), tokens, max_tokens=count, stop_token_ids=stop)
        for _ in range(steps):
            engine.step()
        if aborted:
            engine.core.abort(str(index))
    engine.run()
    for turn_id, tokens in expected.items():
        last, got = engine.last[turn_id], engine.tokens.get(turn_id, [])
        assert got == tokens[: len(got)]
        assert last.finish_reason is FinishReason.ABORTED or got == tokens
        assert 0 <= last.usage.accepted_tokens <= last.usage.drafted_tokens
    assert max(engine.model.computed, default=0) <= max(budget, 4)
    stats = engine.core.stats()
    assert stats.used_blocks == 0
    assert stats.free_blocks + stats.cached_blocks == num_blocks
