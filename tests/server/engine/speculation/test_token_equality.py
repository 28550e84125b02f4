"""A turn says the same with speculation of any kind and without, alone and in a batch, greedy or sampled.

vLLM #40875 and #41758: n-gram drafts corrupt tool calls, and greedy output changes with speculation.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import llguidance
import pytest
import torch
from byte_text import byte_tokenizer
from tiny_llama import VOCAB, make_tiny_llama

from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import Device, Dtype, EngineConfig
from sessile.server.engine.grammar import Grammar, GrammarKind
from sessile.server.engine.messages import SubmitTurn, TurnUsage
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.speculation.drafter import Drafter, NoDrafts
from sessile.server.engine.speculation.past_outputs import PastOutputs
from sessile.server.engine.speculation.proposal import Proposer
from sessile.server.engine.speculation.session_texts import SessionTexts
from sessile.server.engine.speculation.speculator import Speculator
from sessile.server.engine.speculation.step_cost import StepCost
from sessile.server.engine.speculation.suffix_proposer import NgramProposer, SuffixProposer
from sessile.server.model.causal_lm import CausalLM
from sessile.server.model.registry import load_model, resolve_model
from sessile.server.text.grammar_vocabulary import GrammarVocabulary
from sessile.server.text.guidance import guidance_tokenizer

ROWS_ARE_FREE = {1: 1.0, 64: 1.0}
MIB = 2**20

# Each takes the prompts and answers of an earlier run as what is known: see ``PROMPTS``.
PROPOSERS: dict[str, Callable[[], Proposer]] = {
    "ngram": lambda: NgramProposer(SessionTexts(MIB)),
    "suffix": lambda: SuffixProposer(SessionTexts(MIB), PastOutputs(MIB)),
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
        tokens: dict[str, list[int]] = {turn_id: [] for turn_id in prompts}
        while self.core.has_work:
            for output in self.core.step():
                tokens[output.turn_id] += output.token_ids
                if output.usage is not None:
                    self.usage[output.turn_id] = output.usage
            self.core.check_integrity()
        return tokens


def drafting(name: str) -> Speculator:
    return Speculator(PROPOSERS[name](), StepCost(64, ROWS_ARE_FREE), longest=7)


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
    engine = Engine(model, drafting(name))
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
    engine = Engine(model, drafting("suffix"))
    first = engine.run({"a": PROMPTS[0]}, temperature=0.8)
    second = engine.run({"b": PROMPTS[0]}, temperature=0.8)
    assert first["a"] == second["b"]
    usage = engine.usage["b"]
    assert usage.accepted_tokens > 0.7 * usage.completion_tokens
    by_source = {counters.source: counters.accepted for counters in engine.core.stats().drafts}
    assert by_source["outputs"] >= usage.accepted_tokens
