"""A turn says the same with speculation of any kind and without, alone and in a batch, greedy or sampled.

vLLM #40875 and #41758: n-gram drafts corrupt tool calls, and greedy output changes with speculation.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import llguidance
import numpy as np
import pytest
import torch
from byte_text import byte_tokenizer
from checksum_model import ChecksumModel, continuation
from tiny_llama import VOCAB, make_tiny_llama

from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import Device, Dtype, EngineConfig
from sessile.server.engine.grammar import Grammar, GrammarKind
from sessile.server.engine.messages import SubmitTurn, TurnUsage
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.sequence import Sequence
from sessile.server.engine.speculation.draft_model import DraftModelProposer
from sessile.server.engine.speculation.drafter import Branches, Drafter, DraftRequest, NoDrafts
from sessile.server.engine.speculation.past_outputs import PastOutputs
from sessile.server.engine.speculation.proposal import Agreement, Ask, Proposal, Proposer, Source
from sessile.server.engine.speculation.session_texts import SessionTexts
from sessile.server.engine.speculation.speculator import Speculator
from sessile.server.engine.speculation.step_cost import StepCost
from sessile.server.engine.speculation.suffix_proposer import NgramProposer, SuffixProposer
from sessile.server.model.causal_lm import CausalLM
from sessile.server.model.registry import load_model, resolve_model
from sessile.server.text.grammar_vocabulary import GrammarVocabulary
from sessile.server.text.guidance import guidance_tokenizer

pytestmark = pytest.mark.slow

ROWS_ARE_FREE = {1: 1.0, 64: 1.0}
MIB = 2**20


class Tree:
    """The guesses of texts, and two wrong ones before them."""

    def __init__(self) -> None:
        self._texts = SuffixProposer(SessionTexts(MIB), PastOutputs(MIB))

    def propose(self, asks: list[Ask]) -> list[list[Proposal]]:
        return [
            [
                Proposal([(found[0].token_ids[0] + 1) % VOCAB, 5], Source.SESSION, 9),
                *(p._replace(agreement=Agreement.SECOND, match_length=9) for p in found),
            ]
            if found and len(found[0].token_ids)
            else []
            for found in self._texts.propose(asks)
        ]

    def ended(self, sequence: Sequence) -> None:
        self._texts.ended(sequence)

    def close(self) -> None:
        self._texts.close()


PROPOSERS: dict[str, Callable[[CausalLM], Proposer]] = {
    "ngram": lambda model: NgramProposer(SessionTexts(MIB)),
    "suffix": lambda model: SuffixProposer(SessionTexts(MIB), PastOutputs(MIB)),
    "tree": lambda model: Tree(),
    "draft model": lambda model: DraftModelProposer(model, torch.device("cpu"), 2 * MIB, 16, longest=3),
}
# A tool call whose text is in the prompt already, with another argument: what n-gram drafts get wrong.
CALL = [7, 250, 251, 9, 9, 30, 31, 32, 33, 9, 9, 252]
PROMPTS = [
    [(7 * i + 3) % VOCAB for i in range(33)],
    [*CALL, 11, 12, *CALL[:5], 40, *CALL[6:], 13, 14, *CALL[:5]],
    [5, 6, 7, 8] * 9,
    [(i * i) % 50 for i in range(70)],
    [3],
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CausalLM]:
    folder = make_tiny_llama(tmp_path_factory.mktemp("tiny"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model has nothing for a second one
    yield load_model(resolve_model(str(folder)), device="cpu", dtype="float32").model
    torch.set_num_threads(threads)


def byte_vocabulary() -> llguidance.LLTokenizer:
    tokenizer = byte_tokenizer()
    return guidance_tokenizer(GrammarVocabulary.of(tokenizer, VOCAB), tokenizer.encode_inside)


class Engine:
    def __init__(self, model: CausalLM, drafter: Drafter) -> None:
        config = EngineConfig(
            device=Device.CPU, dtype=Dtype.FLOAT32, kv_memory_bytes=2 * MIB, max_batch_tokens=64, max_sequences=8
        )
        clock = itertools.count().__next__
        self.core = EngineCore(
            config,
            model,
            torch.device("cpu"),
            clock,
            drafter=lambda runner, kv_cache: drafter,
            vocabulary=byte_vocabulary,
        )
        self.usage: dict[str, TurnUsage] = {}

    def run(self, prompts: dict[str, list[int]], max_tokens: int = 40, **sampling) -> dict[str, list[int]]:
        for turn_id, prompt in prompts.items():
            params = SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, "seed": 5, **sampling})
            self.core.submit(SubmitTurn(turn_id=turn_id, token_ids=prompt, sampling=params))
        return self.finish({turn_id: [] for turn_id in prompts})

    def finish(self, tokens: dict[str, list[int]]) -> dict[str, list[int]]:
        """Step to the end; what turns say is added to ``tokens``."""
        while self.core.has_work:
            for output in self.core.step():
                tokens[output.turn_id] += output.token_ids
                if output.usage is not None:
                    self.usage[output.turn_id] = output.usage
            self.core.check_integrity()
        return tokens


def drafting(name: str, model: CausalLM) -> Speculator:
    return Speculator(PROPOSERS[name](model), StepCost(64, ROWS_ARE_FREE), longest=7)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["read_file", "read_folder"]}, "path": {"type": "string"}},
    "required": ["name", "path"],
    "x-guidance": {"whitespace_flexible": False},
}
GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2, "logit_bias": {9: 2.5}}
SAMPLINGS = {
    "greedy": {},
    "sampled": {"temperature": 0.6, "top_p": 0.9, "top_k": 40},
    "greedy with penalties": PENALTIES,
    "sampled with penalties": {"temperature": 0.8, "min_p": 0.02, **PENALTIES},
    "greedy with a schema": {"grammar": GRAMMAR},
    "sampled with a schema": {"temperature": 1.0, "grammar": GRAMMAR, "frequency_penalty": 0.1},
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("name", PROPOSERS)
def test_vllm_40875_41758_tokens_are_the_same_with_speculation_on_and_off(
    model: CausalLM, name: str, batch: int, sampling: dict[str, Any]
) -> None:
    prompts = {str(number): prompt for number, prompt in enumerate(PROMPTS)}
    plain = Engine(model, NoDrafts()).run(prompts, **sampling)
    engine = Engine(model, drafting(name, model))
    for repeat in range(2):  # the second time past outputs are there to guess from
        names = list(prompts)
        for start in range(0, len(names), batch):
            group = {f"{repeat} {n}": prompts[n] for n in names[start : start + batch]}
            for turn_id, tokens in engine.run(group, **sampling).items():
                assert tokens == plain[turn_id.split()[1]]
    stats = engine.core.stats()
    repeats_itself = not {"frequency_penalty", "grammar"} & set(sampling)
    if name != "ngram" or repeats_itself:
        assert stats.accepted_tokens > 0, "nothing was guessed right: the test shows nothing"
    assert sum(c.accepted for c in stats.drafts) == stats.accepted_tokens
    assert sum(c.drafted for c in stats.drafts) == stats.drafted_tokens


def test_a_repeated_turn_is_guessed_from_past_outputs(model: CausalLM) -> None:
    engine = Engine(model, drafting("suffix", model))
    first = engine.run({"a": PROMPTS[0]}, temperature=0.8)
    second = engine.run({"b": PROMPTS[0]}, temperature=0.8)
    assert first["a"] == second["b"]
    usage = engine.usage["b"]
    assert usage.accepted_tokens > 0.7 * usage.completion_tokens
    by_source = {counters.source: counters.accepted for counters in engine.core.stats().drafts}
    assert by_source["outputs"] >= usage.accepted_tokens


def test_expected_text_is_guessed_from(model: CausalLM) -> None:
    """A file that is being edited, say: the answer repeats it, with other words here and there."""
    plain = Engine(model, NoDrafts()).run({"a": PROMPTS[0]})["a"]
    engine = Engine(model, drafting("suffix", model))
    expected = (*plain[:12], 1, 1, *plain[13:])
    sampling = SamplingParams(temperature=0.0, max_tokens=40, seed=5)
    engine.core.submit(SubmitTurn(turn_id="a", token_ids=PROMPTS[0], sampling=sampling, expected_token_ids=expected))
    assert engine.finish({"a": []})["a"] == plain
    by_source = {counters.source: counters.accepted for counters in engine.core.stats().drafts}
    assert by_source["expected"] > 20


def test_tenants_are_not_guessed_from_each_other(model: CausalLM) -> None:
    engine = Engine(model, drafting("suffix", model))
    for salt in ("one", "two"):
        sampling = SamplingParams(temperature=0.0, max_tokens=40, seed=5)
        engine.core.submit(SubmitTurn(turn_id=salt, token_ids=PROMPTS[0], sampling=sampling, cache_salt=salt))
        engine.finish({salt: []})
    assert {c.source: c.drafted for c in engine.core.stats().drafts}["outputs"] == 0


def chi_square(table: np.ndarray) -> float:
    """Of two rows of counts that should have one distribution, over what one in a thousand such pairs exceeds
    (Wilson and Hilferty, 1931)."""
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    freedom = table.shape[1] - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    return float(((table - expected) ** 2 / expected).sum() / limit)


def test_samples_with_speculation_have_the_distribution_of_those_without() -> None:
    """On a vocabulary of 97, with other seeds: with the same ones the tokens are the same."""
    rounds, vocab = 800, 97

    class Noisy(ChecksumModel):
        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            sure = torch.nn.functional.one_hot(hidden[:, 0].long(), vocab).float() * 3.0
            return sure + torch.cos(torch.arange(vocab) * (hidden + 1.0))

    class Guesses(NoDrafts):
        """Likely tokens and unlikely ones."""

        def draft(self, requests: list[DraftRequest], budget: int) -> list[Branches]:
            return [((*continuation(r.sequence.token_ids.tolist(), 1), 7, 8),) for r in requests]

    counts = []
    for drafter, first_seed in ((NoDrafts(), 0), (Guesses(), 10**6)):
        engine = Engine(Noisy(), drafter)
        seen = np.zeros((2, vocab))
        for start in range(0, rounds, 8):
            for seed in range(first_seed + start, first_seed + start + 8):
                sampling = SamplingParams(temperature=0.9, max_tokens=3, seed=seed)
                engine.core.submit(SubmitTurn(turn_id=str(seed), token_ids=[3, 1, 4], sampling=sampling))
            found = engine.finish({str(seed): [] for seed in range(first_seed + start, first_seed + start + 8)})
            for _, second, third in found.values():
                seen[0, second] += 1
                seen[1, third] += 1
        counts.append(seen)
    assert engine.core.stats().accepted_tokens > rounds * 0.05
    for place in range(2):
        both = np.array([seen[place] for seen in counts])
        often = both[:, both.sum(0) >= 10]
        table = np.column_stack([often, both.sum(1) - often.sum(1)])
        assert chi_square(table[:, table.sum(0) > 0]) < 1.0
