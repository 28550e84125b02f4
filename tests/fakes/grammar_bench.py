"""An engine in process that answers by grammars, and what came out of it."""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
from chance_model import ChanceModel
from small_tokenizer import small_tokenizer

from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.grammar import Grammar
from sessile.server.engine.messages import SubmitTurn, TurnOutput
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.speculation.drafter import Branches, DraftRequest, NoDrafts
from sessile.server.text.grammar_vocabulary import GrammarVocabulary
from sessile.server.text.guidance import guidance_tokenizer
from sessile.server.text.tokenizer import Tokenizer

BLOCK_BYTES = 2 * 16 * 2 * 4
CLOSERS = ('"', "}", "]", ",", '",', '"}', "}}")


class RandomDrafter(NoDrafts):
    """Guesses tokens that others of ``answers`` had after the same last token, or any token."""

    def __init__(self, seed: int, longest: int, vocab_size: int) -> None:
        self._random = random.Random(seed)
        self._longest = longest
        self._vocab_size = vocab_size
        self.answers: list[list[int]] = []

    def draft(self, requests: list[DraftRequest], budget: int) -> list[Branches]:
        """One or two guesses for each turn."""
        return [
            tuple(self._guess(request.sequence.token_ids.tolist()) for _ in range(self._random.randint(1, 2)))
            for request in requests
        ]

    def _guess(self, tokens: list[int]) -> tuple[int, ...]:
        count = self._random.randint(0, self._longest)
        for answer in self.answers:
            for place in range(len(answer), 0, -1):
                if answer[:place] == tokens[-place:]:
                    return tuple(answer[place : place + count])
        return tuple(self._random.randrange(self._vocab_size) for _ in range(count))


class GrammarBench:
    """``vocab_padding``: logits beyond the tokenizer's tokens, as models have them."""

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        *,
        drafter: RandomDrafter | None = None,
        num_blocks: int = 512,
        vocab_padding: int = 13,
        **config: int,
    ) -> None:
        self.tokenizer = tokenizer if tokenizer is not None else small_tokenizer()
        self.vocab_size = self.tokenizer.vocab_size + vocab_padding
        closers = {self.tokenizer.token_id(text) for text in CLOSERS} - {None}
        self.core = EngineCore(
            EngineConfig(kv_memory_bytes=num_blocks * BLOCK_BYTES, **config),
            ChanceModel(self.vocab_size, closers, favour=3.0),
            torch.device("cpu"),
            clock=itertools.count().__next__,
            drafter=None if drafter is None else lambda runner, kv_cache: drafter,
            vocabulary=lambda: guidance_tokenizer(
                GrammarVocabulary.of(self.tokenizer, self.vocab_size), self.tokenizer.encode_inside
            ),
        )
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[float]] = {}
        self.last: dict[str, TurnOutput] = {}

    def submit(self, turn_id: str, grammar: Grammar | None, prompt: list[int] | None = None, **sampling: Any) -> None:
        params = SamplingParams(**{"seed": 5, "max_tokens": 300, "grammar": grammar, **sampling})
        self.core.submit(
            SubmitTurn(
                turn_id=turn_id,
                token_ids=prompt if prompt is not None else [(7 * i + len(turn_id)) % 97 for i in range(20)],
                sampling=params,
                eos_token_ids=tuple(self.tokenizer.eos_token_ids),
            )
        )

    def run(self) -> None:
        """Until all turns have ended; grammars may be compiling meanwhile."""
        idle = 0
        while self.core.has_work:
            before = self.core.stats().generated_tokens
            for output in self.core.step():
                self.tokens.setdefault(output.turn_id, []).extend(output.token_ids)
                self.logprobs.setdefault(output.turn_id, []).extend(found.logprob for found in output.logprobs or ())
                if output.finish_reason is not None:
                    self.last[output.turn_id] = output
            self.core.check_integrity()
            waits = self.core.only_waits or self.core.stats().generated_tokens > before
            idle = 0 if waits else idle + 1
            assert idle < 1000, "the engine wedged"

    def text(self, turn_id: str) -> str:
        """What the turn said, without special tokens."""
        return self.tokenizer.decode(self.tokens[turn_id], skip_special=True)
