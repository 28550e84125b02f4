"""The whole engine on a GPU that is not there: prompts in chunks, graphs for decodes, sampling on the device."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_device import FakeDevice
from summing_model import VOCAB, SummingModel, next_token

from sessile.server.engine import core as core_module
from sessile.server.engine.core import EngineCore
from sessile.server.engine.device.parts import DeviceParts, gpu_parts
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.grammar import Grammar, GrammarKind
from sessile.server.engine.messages import SubmitTurn
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.speculation.drafter import Branches, Drafter, DraftRequest, NoDrafts
from sessile.server.text.grammar_vocabulary import GrammarVocabulary
from sessile.server.text.guidance import guidance_tokenizer

BLOCK_BYTES = SummingModel().kv_layout(16).block_bytes
LETTERS = GrammarVocabulary([chr(ord(" ") + i).encode() for i in range(95)] + [b""] * 5 + [b"<end>"], [100], [100])


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


class Guesses(NoDrafts):
    """Two guesses for each turn: three tokens that are right and one that is not, behind one that is wrong."""

    def draft(self, requests: list[DraftRequest], budget: int) -> list[Branches]:
        return [self._guess(request.sequence.token_ids.tolist()) for request in requests]

    def skips(self) -> bool:
        return False

    def _guess(self, tokens: list[int]) -> Branches:
        right: list[int] = []
        for _ in range(3):
            right.append(next_token([*tokens, *right]))
        return ((right[0] + 1) % VOCAB,), (*right, (next_token([*tokens, *right]) + 1) % VOCAB)


@pytest.fixture
def drafter() -> Drafter | None:
    return None


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, device: FakeDevice, drafter: Drafter | None) -> Iterator[EngineCore]:
    config = EngineConfig(
        kv_memory_bytes=80 * BLOCK_BYTES, max_batch_tokens=24, max_prefill_tokens_while_decoding=16, max_sequences=4
    )

    def parts(config: EngineConfig, model: SummingModel, _: torch.device, progress: object) -> DeviceParts:
        return gpu_parts(config, model, device, lambda stage, fraction: None)

    monkeypatch.setattr(core_module, "device_parts", parts)
    core = EngineCore(
        config,
        SummingModel(),
        torch.device("cpu"),
        itertools.count().__next__,
        drafter=None if drafter is None else lambda runner, kv_cache: drafter,
        vocabulary=lambda: guidance_tokenizer(LETTERS, lambda text: [ord(letter) - ord(" ") for letter in text]),
    )
    yield core
    core.close()


def _run(engine: EngineCore, prompts: dict[str, list[int]], **sampling: Any) -> dict[str, list[int]]:
    for turn_id, prompt in prompts.items():
        params = SamplingParams(**{"max_tokens": 9, "temperature": 0.0, "seed": 7, **sampling})
        engine.submit(SubmitTurn(turn_id=turn_id, token_ids=prompt, sampling=params))
    tokens: dict[str, list[int]] = {turn_id: [] for turn_id in prompts}
    for _ in range(300):
        if not engine.has_work:
            return tokens
        if engine.only_waits:
            time.sleep(0.001)
        for output in engine.step():
            tokens[output.turn_id].extend(output.token_ids)
        engine.check_integrity()
    raise AssertionError("the engine wedged")


PROMPTS = {
    "a": [(7 * i + 3) % VOCAB for i in range(37)],
    "b": [(5 * i + 1) % VOCAB for i in range(5)],
    "c": [(11 * i + 2) % VOCAB for i in range(18)],
}


def test_turns_get_the_models_tokens_through_graphs(engine: EngineCore, device: FakeDevice) -> None:
    device.log.clear()
    found = _run(engine, PROMPTS)
    for turn_id, prompt in PROMPTS.items():
        tokens = list(prompt)
        for _ in range(9):
            tokens.append(next_token(tokens))
        assert found[turn_id] == tokens[len(prompt) :]
    assert device.log.count("replay") >= 8


def test_a_later_turn_reuses_what_graphs_wrote(engine: EngineCore) -> None:
    first = _run(engine, {"a": PROMPTS["a"]})["a"]
    longer = [*PROMPTS["a"], *first, 5]
    before = engine.stats().prompt_tokens_by_source.device
    tokens = list(longer)
    for _ in range(9):
        tokens.append(next_token(tokens))
    assert _run(engine, {"b": longer})["b"] == tokens[len(longer) :]
    assert engine.stats().prompt_tokens_by_source.device - before >= 37 + 8


def test_sampled_turns_are_the_same_alone_and_together(engine: EngineCore) -> None:
    sampling = {"temperature": 2.0, "top_p": 0.98}
    together = _run(engine, PROMPTS, **sampling)
    alone = _run(engine, {"again": PROMPTS["b"]}, **sampling)
    assert alone["again"] == together["b"]


def test_grammars_masks_and_forced_tokens_on_the_device(engine: EngineCore) -> None:
    grammar = Grammar(GrammarKind.REGEX, "[a-c]+ forced [x-z]{2}")
    free = _run(engine, PROMPTS)
    for temperature in (0.0, 1.0):
        bound = _run(engine, {"g": PROMPTS["c"]}, grammar=grammar, max_tokens=20, temperature=temperature)
        text = "".join(chr(ord(" ") + token) for token in bound["g"])
        assert re.fullmatch("[a-c]+ forced [x-z]{2}|[a-c]{20}|[a-c]+( forced [x-z]{0,1})?", text), text
    mixed = _run(engine, {**PROMPTS, "g": PROMPTS["b"]})
    assert {turn_id: mixed[turn_id] for turn_id in PROMPTS} == free


def test_penalties_and_biases_on_the_device(engine: EngineCore) -> None:
    plain = _run(engine, {"a": [4, 4]}, logit_bias={7: 50.0})["a"]
    assert plain == [7] * 9
    varied = _run(engine, {"a": [4, 4]}, logit_bias={7: 1.5, 8: 1.4}, presence_penalty=2.0)["a"]
    assert varied[:2] == [8, 7] and len(set(varied)) > 2


@pytest.mark.parametrize("drafter", [Guesses()])
def test_drafts_are_verified_by_graphs(engine: EngineCore, device: FakeDevice) -> None:
    device.log.clear()
    found = _run(engine, PROMPTS)
    for turn_id, prompt in PROMPTS.items():
        tokens = list(prompt)
        for _ in range(9):
            tokens.append(next_token(tokens))
        assert found[turn_id] == tokens[len(prompt) :]
    assert device.log.count("replay") >= 2
    stats = engine.stats()
    assert stats.accepted_tokens >= 3 * 5


@pytest.mark.parametrize("drafter", [Guesses()])
def test_the_device_samples_the_same_behind_drafts(engine: EngineCore) -> None:
    sampling = {"temperature": 2.0, "top_p": 0.98}
    drafted = _run(engine, PROMPTS, **sampling)
    engine._scheduler._drafts._drafter = NoDrafts()
    plain = _run(engine, {f"{turn_id} again": prompt for turn_id, prompt in PROMPTS.items()}, **sampling)
    assert list(drafted.values()) == list(plain.values())
