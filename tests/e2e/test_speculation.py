"""The embedded model says the same with speculation of any kind and without: 30 prompts of recorded agents."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import llguidance
import pytest
import torch
from embedded_model import embedded_model
from recordings import recordings

from sessile.kernels.backend import cpu_library
from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.grammar import Grammar, GrammarKind
from sessile.server.engine.messages import DraftCounters, SubmitTurn
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.sequence import Sequence
from sessile.server.engine.speculation.draft_model import DraftModelProposer
from sessile.server.engine.speculation.drafter import Branches, Drafter, DraftRequest, NoDrafts, VerifiedDraft
from sessile.server.engine.speculation.past_outputs import PastOutputs
from sessile.server.engine.speculation.proposal import Agreement, Ask, Proposal, Proposer
from sessile.server.engine.speculation.session_texts import SessionTexts
from sessile.server.engine.speculation.speculator import Speculator
from sessile.server.engine.speculation.step_cost import StepCost
from sessile.server.engine.speculation.suffix_proposer import NgramProposer, SuffixProposer
from sessile.server.model.causal_lm import CausalLM
from sessile.server.model.registry import load_model
from sessile.server.model.source import ModelSource
from sessile.server.text.grammar_vocabulary import GrammarVocabulary
from sessile.server.text.guidance import guidance_tokenizer
from sessile.server.text.tokenizer_files import load_tokenizer

MIB = 2**20
PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS = 30, 160, 24
SCHEMA = {
    "type": "object",
    "properties": {"thought": {"type": "string", "maxLength": 60}, "command": {"type": "string"}},
    "required": ["thought", "command"],
}
GRAMMARS = {"free": None, "schema": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))}

pytestmark = pytest.mark.slow


class Tree:
    """What texts say, the second guess first."""

    def __init__(self) -> None:
        self._texts = SuffixProposer(SessionTexts(64 * MIB), PastOutputs(64 * MIB))

    def propose(self, asks: list[Ask]) -> list[list[Proposal]]:
        found = self._texts.propose(asks)
        return [
            [proposals[-1]._replace(agreement=Agreement.SINGLE), proposals[0]._replace(agreement=Agreement.SECOND)]
            if len(proposals) > 1
            else proposals
            for proposals in found
        ]

    def ended(self, sequence: Sequence) -> None:
        self._texts.ended(sequence)

    def close(self) -> None: ...


class Switch:
    """A drafter that can be another one for the next turns: prompts are computed once."""

    num_damaged_files = 0

    def __init__(self) -> None:
        self.drafter: Drafter = NoDrafts()

    def draft(self, requests: list[DraftRequest], budget: int) -> list[Branches]:
        return self.drafter.draft(requests, budget)

    def verified(self, sequence: Sequence, verified: list[VerifiedDraft]) -> None:
        self.drafter.verified(sequence, verified)

    def stepped(self, rows: int, seconds: float) -> None: ...

    def ended(self, sequence: Sequence) -> None:
        self.drafter.ended(sequence)

    def counters(self) -> tuple[DraftCounters, ...]:
        return self.drafter.counters()

    def close(self) -> None: ...


class Bench:
    def __init__(self, source: ModelSource, traces: Path) -> None:
        loaded = load_model(source, device="cpu", dtype="bfloat16")
        self.model: CausalLM = loaded.model
        self.switch = Switch()
        self.tokenizer = load_tokenizer(source)
        self._vocab_size = loaded.config.vocab_size
        config = EngineConfig(kv_memory_bytes=512 * MIB, host_memory_bytes=0, disk_quota_bytes=0)
        self.core = EngineCore(
            config,
            self.model,
            torch.device("cpu"),
            time.monotonic,
            drafter=lambda runner, kv_cache: self.switch,
            vocabulary=self._vocabulary,
        )
        self._plain: dict[str, list[list[int]]] = {}
        self.prompts = self._prompts(traces)

    def plain(self, grammar: str) -> list[list[int]]:
        """Without speculation, one by one."""
        if grammar not in self._plain:
            self._plain[grammar] = self.answers(NoDrafts(), 1, grammar)
        return self._plain[grammar]

    def answers(self, drafter: Drafter, batch: int, grammar: str) -> list[list[int]]:
        self.switch.drafter = drafter
        sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, grammar=GRAMMARS[grammar])
        found: dict[str, list[int]] = {}
        for start in range(0, PROMPTS, batch):
            for number in range(start, min(start + batch, PROMPTS)):
                found[str(number)] = []
                self.core.submit(SubmitTurn(turn_id=str(number), token_ids=self.prompts[number], sampling=sampling))
            while self.core.has_work:
                for output in self.core.step():
                    found[output.turn_id] += output.token_ids
        return list(found.values())

    def _vocabulary(self) -> llguidance.LLTokenizer:
        vocabulary = GrammarVocabulary.of(self.tokenizer, self._vocab_size)
        return guidance_tokenizer(vocabulary, self.tokenizer.encode_inside)

    def _prompts(self, traces: Path) -> list[list[int]]:
        requests = [
            json.loads(line)["input"]
            for name in ("miniswe", "magagent")
            for path in sorted((traces / name).glob("*.jsonl"))
            for line in path.read_text().splitlines()[:3]
        ]
        found = [self.tokenizer.encode_inside(text[-2000:])[-PROMPT_TOKENS:] for text in requests if text]
        return found[:: max(1, len(found) // PROMPTS)][:PROMPTS]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    if cpu_library(torch.device("cpu")) is None:
        pytest.skip("without the C++ kernels rows are not the same bits in every batch")
    source, traces = embedded_model(), recordings("traces")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    bench = Bench(source, traces)
    yield bench
    bench.core.close()
    torch.set_num_threads(threads)


def proposer(name: str, bench: Bench) -> Proposer:
    texts = SessionTexts(64 * MIB)
    match name:
        case "ngram":
            return NgramProposer(texts)
        case "suffix":
            return SuffixProposer(texts, PastOutputs(64 * MIB))
        case "tree":
            return Tree()
        case _:
            return DraftModelProposer(bench.model, torch.device("cpu"), 128 * MIB, 16, longest=3)


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_batch_says_what_its_rows_say_one_by_one(bench: Bench, grammar: str) -> None:
    plain = bench.plain(grammar)
    assert len(plain) == PROMPTS
    assert bench.answers(NoDrafts(), 5, grammar) == plain


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("name", ["ngram", "suffix", "tree", "draft model"])
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_vllm_41758_the_embedded_model_says_the_same(bench: Bench, grammar: str, name: str, batch: int) -> None:
    plain = bench.plain(grammar)
    drafter = Speculator(proposer(name, bench), StepCost(512, {1: 1.0, 512: 1.0}), longest=7)
    before = bench.core.stats().accepted_tokens
    assert bench.answers(drafter, batch, grammar) == plain
    assert bench.core.stats().accepted_tokens > before
