"""The next step is prepared while the present one runs, and nobody can tell by the tokens."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import pytest
import torch
from fake_device import FakeDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from summing_model import VOCAB, SummingModel, continuation, next_token

from sessile.server.engine import core as core_module
from sessile.server.engine.core import EngineCore
from sessile.server.engine.device.parts import DeviceParts, gpu_parts
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.grammar import Grammar, GrammarKind
from sessile.server.engine.messages import FinishReason, Priority, SubmitTurn
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.speculation.drafter import Branches, DraftRequest, NoDrafts
from sessile.server.text.grammar_vocabulary import GrammarVocabulary
from sessile.server.text.guidance import guidance_tokenizer

BLOCK_BYTES = SummingModel().kv_layout(16).block_bytes
LETTERS = GrammarVocabulary([chr(ord(" ") + i).encode() for i in range(95)] + [b""] * 5 + [b"<end>"], [100], [100])


class NowAndThen(NoDrafts):
    """Guesses in some steps, rightly or not, and says of the others that it does not."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def skips(self) -> bool:
        return self._random.random() < 0.6

    def draft(self, requests: list[DraftRequest], budget: int) -> list[Branches]:
        return [self._guess(request.sequence.token_ids.tolist()) for request in requests]

    def _guess(self, tokens: list[int]) -> Branches:
        right = next_token(tokens)
        guesses = ((right,), ((right + 1) % VOCAB,), (right, next_token([*tokens, right])))
        return tuple(self._random.sample(guesses, self._random.randint(0, 1)))


class Engine:
    """An engine on a fake GPU, which looks ahead or reads each step's tokens before it goes on."""

    def __init__(self, looks_ahead: bool, num_blocks: int = 80, seed: int | None = None) -> None:
        self.device = FakeDevice()
        config = EngineConfig(
            kv_memory_bytes=num_blocks * BLOCK_BYTES,
            max_batch_tokens=24,
            max_prefill_tokens_while_decoding=16,
            max_sequences=4,
        )

        def parts(config: EngineConfig, model: SummingModel, _: torch.device, progress: object) -> DeviceParts:
            found = gpu_parts(config, model, self.device, lambda stage, fraction: None)
            found.steps.goes_on_alone = looks_ahead
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(core_module, "device_parts", parts)
            self.core = EngineCore(
                config,
                SummingModel(),
                torch.device("cpu"),
                itertools.count().__next__,
                drafter=None if seed is None else lambda runner, kv_cache: NowAndThen(seed),
                vocabulary=lambda: guidance_tokenizer(LETTERS, lambda text: [ord(letter) - 32 for letter in text]),
            )
        self.device.log.clear()
        self.tokens: dict[str, list[int]] = {}
        self.reasons: dict[str, FinishReason] = {}

    def submit(
        self, turn_id: str, prompt: list[int], priority: Priority = Priority.INTERACTIVE, **sampling: Any
    ) -> None:
        params = SamplingParams(**{"max_tokens": 9, "temperature": 0.0, "seed": 7, **sampling})
        self.tokens[turn_id] = []
        self.core.submit(SubmitTurn(turn_id=turn_id, token_ids=prompt, sampling=params, priority=priority))

    def step(self) -> None:
        if self.core.only_waits:
            time.sleep(0.0005)
        for output in self.core.step():
            self.tokens[output.turn_id].extend(output.token_ids)
            if output.finish_reason is not None:
                assert output.turn_id not in self.reasons, "a turn ends once"
                self.reasons[output.turn_id] = output.finish_reason
        self.core.check_integrity()

    def run(self) -> None:
        for _ in range(3000):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("the engine wedged")

    @property
    def most_under_way(self) -> int:
        """Graphs in the stream at once, at most."""
        most = under_way = 0
        for entry in self.device.log:
            under_way += {"replay": 1, "replayed": -1}.get(entry, 0)
            most = max(most, under_way)
        return most


PROMPT = [(7 * i + 3) % VOCAB for i in range(13)]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_next_step_is_launched_before_the_present_one_is_done(temperature: float) -> None:
    engine = Engine(looks_ahead=True)
    engine.submit("a", PROMPT, temperature=temperature)
    engine.submit("b", PROMPT[:4], temperature=temperature)
    engine.run()
    assert engine.most_under_way == 2, "one runs, the next waits behind it"
    one_by_one = Engine(looks_ahead=False)
    one_by_one.submit("a", PROMPT, temperature=temperature)
    one_by_one.submit("b", PROMPT[:4], temperature=temperature)
    one_by_one.run()
    assert one_by_one.most_under_way == 1
    assert engine.tokens == one_by_one.tokens
    if not temperature:
        assert engine.tokens["a"] == continuation(PROMPT, 9)


@pytest.mark.parametrize("sampling", [{"logprobs": 1}, {"presence_penalty": 1.0}, {"min_tokens": 3}])
def test_what_needs_the_token_on_the_host_ends_the_look_ahead(sampling: dict[str, Any]) -> None:
    engine = Engine(looks_ahead=True)
    engine.submit("a", PROMPT, **sampling)
    engine.run()
    assert engine.most_under_way == 1
    assert len(engine.tokens["a"]) == 9


def test_a_stop_token_throws_the_row_away_that_was_launched_behind_it() -> None:
    engine = Engine(looks_ahead=True)
    stop = continuation(PROMPT, 5)[-1]
    count = continuation(PROMPT, 5).index(stop) + 1
    engine.submit("a", PROMPT, stop_token_ids=(stop,))
    engine.submit("b", PROMPT[:7], max_tokens=12)
    engine.run()
    assert engine.tokens["a"] == continuation(PROMPT, count)
    assert engine.tokens["b"] == continuation(PROMPT[:7], 12)
    assert engine.reasons == {"a": FinishReason.STOP, "b": FinishReason.LENGTH}
    assert engine.core.stats().generated_tokens == count + 12, "what was thrown away counts nowhere"
    longer = [*PROMPT, *continuation(PROMPT, count), 3]
    engine.submit("c", longer)
    engine.run()
    assert engine.tokens["c"] == continuation(longer, 9), "the thrown away row spoilt nothing"


def test_the_last_token_by_length_has_no_row_behind_it() -> None:
    engine = Engine(looks_ahead=True)
    engine.submit("a", PROMPT, max_tokens=6)
    engine.run()
    assert engine.device.log.count("replay") == 5, "the prompt brings the first token"


def test_an_abort_ends_a_turn_with_the_step_that_it_is_in() -> None:
    engine = Engine(looks_ahead=True)
    engine.submit("a", PROMPT, max_tokens=30)
    engine.submit("b", PROMPT[:4], max_tokens=8)
    for _ in range(4):
        engine.step()
    engine.core.abort("a")
    engine.core.abort("a")
    engine.step()
    assert engine.reasons["a"] is FinishReason.ABORTED
    engine.run()
    assert engine.tokens["a"] == continuation(PROMPT, len(engine.tokens["a"])) and len(engine.tokens["a"]) < 30
    assert engine.tokens["b"] == continuation(PROMPT[:4], 8)
    assert engine.core.stats().used_blocks == 0


def test_a_turn_that_comes_is_not_kept_waiting_by_the_look_ahead() -> None:
    engine = Engine(looks_ahead=True)
    engine.submit("a", PROMPT, max_tokens=40)
    for _ in range(5):
        engine.step()
    engine.submit("b", PROMPT[:4], max_tokens=1)
    for _ in range(3):  # the step under way, its own prompt, and the reading of that
        engine.step()
    assert engine.tokens["b"] == continuation(PROMPT[:4], 1)


TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.tuples(st.integers(0, 3), st.integers(1, 50)),
            "max_tokens": st.integers(1, 14),
            "temperature": st.sampled_from([0.0, 0.0, 1.5]),
            "stop": st.lists(st.integers(0, VOCAB - 1), max_size=12),
            "extra": st.sampled_from(["", "", "", "grammar", "penalty", "logprobs", "min_tokens"]),
            "priority": st.sampled_from([Priority.INTERACTIVE, Priority.BATCH]),
            "steps": st.integers(0, 7),
            "abort": st.sampled_from([False, False, True]),
        }
    ),
    min_size=1,
    max_size=7,
)
EXTRAS: dict[str, dict[str, Any]] = {
    "": {},
    "grammar": {"grammar": Grammar(GrammarKind.REGEX, "[a-c]+ forced [x-z]{2}")},
    "penalty": {"presence_penalty": 0.5},
    "logprobs": {"logprobs": 2},
    "min_tokens": {"min_tokens": 3},
}


@settings(max_examples=20, deadline=None)
@given(turns=TURNS, num_blocks=st.integers(64, 70), held_back=st.integers(52, 60), drafts=st.booleans())
def test_any_load_says_the_same_with_and_without_it(
    turns: list[dict[str, Any]], num_blocks: int, held_back: int, drafts: bool
) -> None:
    """Stop tokens, aborts, preemption, grammars and drafts."""
    found = []
    for looks_ahead in (True, False):
        engine = Engine(looks_ahead, num_blocks, seed=3 if drafts else None)
        pool = engine.core._cache.pool
        kept = pool.allocate(held_back)  # the least that a GPU starts with is too much to be preempted in
        assert kept is not None
        engine.core.num_blocks -= held_back
        for number, turn in enumerate(turns):
            family, length = turn["prompt"]
            prompt = [(family * 31 + i * i + 5 * i) % VOCAB for i in range(length)]
            engine.submit(
                str(number),
                prompt,
                turn["priority"],
                max_tokens=turn["max_tokens"],
                temperature=turn["temperature"],
                stop_token_ids=tuple(turn["stop"]),
                **EXTRAS[turn["extra"]],
            )
            for _ in range(turn["steps"]):
                engine.step()
            if turn["abort"]:
                engine.core.abort(str(number))
        engine.run()
        assert pool.num_free + engine.core._cache.tree.num_blocks == engine.core.num_blocks
        engine.core.close()
        found.append(engine)
    ahead, one_by_one = found
    for turn_id, reason in ahead.reasons.items():
        mine, theirs = ahead.tokens[turn_id], one_by_one.tokens[turn_id]
        if FinishReason.ABORTED in (reason, one_by_one.reasons[turn_id]):
            shorter = min(len(mine), len(theirs))
            assert mine[:shorter] == theirs[:shorter]
        else:
            assert mine == theirs
            assert reason is one_by_one.reasons[turn_id]
    assert ahead.reasons.keys() == one_by_one.reasons.keys() == {str(number) for number in range(len(turns))}
