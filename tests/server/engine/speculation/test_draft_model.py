"""A draft model's guesses are those of the model itself, whatever was accepted of the ones before."""

from __future__ import annotations

import random

import torch
from checksum_model import VOCAB, ChecksumModel, continuation

from sessile.server.engine.messages import SubmitTurn
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.sequence import Sequence
from sessile.server.engine.speculation.draft_model import DraftModelProposer
from sessile.server.engine.speculation.proposal import Ask, Proposal, Source
from sessile.server.engine.speculation.step_cost import StepCost
from sessile.server.engine.speculation.texts_then_model import TextsThenModel

BLOCK_BYTES = 2 * 16 * 2 * 4


def sequence(length: int, seed: int = 0) -> Sequence:
    tokens = [(seed * 31 + i * i + 5 * i) % VOCAB for i in range(length)]
    return Sequence(SubmitTurn(turn_id=str(seed), token_ids=tokens, sampling=SamplingParams()), 1000, 0.0, seed)


def proposer(num_blocks: int = 200, longest: int = 4) -> DraftModelProposer:
    return DraftModelProposer(ChecksumModel(), torch.device("cpu"), num_blocks * BLOCK_BYTES, 16, longest)


def test_guesses_are_the_models_whatever_came() -> None:
    """The model that shows every misplaced token of its KV."""
    rng = random.Random(1)
    guesser, turns = proposer(), [sequence(length, length) for length in (1, 5, 40, 300)]
    for _ in range(60):
        asked = [turn for turn in turns if rng.random() < 0.8]
        for turn, proposals in zip(asked, guesser.propose([Ask(turn, 4) for turn in asked]), strict=True):
            if proposals:
                assert list(proposals[0].token_ids) == continuation(turn.token_ids.tolist(), 4)
            guesser.check_integrity()
        for turn in turns:
            right = continuation(turn.token_ids.tolist(), 5)[: rng.randint(0, 4)]
            for token in [*right, rng.randrange(VOCAB)]:
                turn.append(token, None)
    for turn in turns:
        guesser.ended(turn)
    guesser.check_integrity()


def test_a_long_prompt_is_read_in_steps() -> None:
    guesser, turn = proposer(), sequence(700)
    assert [bool(guesser.propose([Ask(turn, 4)])[0]) for _ in range(4)] == [False, False, True, True]


def test_turns_give_way_where_the_pool_is_full() -> None:
    guesser = proposer(num_blocks=8)
    first, second, huge = sequence(60, 1), sequence(90, 2), sequence(500, 3)
    assert guesser.propose([Ask(first, 4)])[0]
    assert guesser.propose([Ask(second, 4)])[0]
    assert not guesser.propose([Ask(huge, 4)])[0]
    found = guesser.propose([Ask(first, 4)])[0]
    assert list(found[0].token_ids) == continuation(first.token_ids.tolist(), 4)
    guesser.check_integrity()
    together = guesser.propose([Ask(first, 4), Ask(second, 4)])
    assert [bool(proposals) for proposals in together] == [False, True], "the first gave way to the second"
    assert list(together[1][0].token_ids) == continuation(second.token_ids.tolist(), 4)


class Says:
    """A proposer that always says the same."""

    def __init__(self, *proposals: Proposal) -> None:
        self.proposals = list(proposals)
        self.asked = 0

    def propose(self, asks: list[Ask]) -> list[list[Proposal]]:
        self.asked += len(asks)
        return [list(self.proposals) for _ in asks]

    def ended(self, sequence: Sequence) -> None: ...

    def close(self) -> None: ...


def run(texts: Says, model: Says, model_s: float, right: bool, steps: int) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += model_s
        return now[0]

    turn = sequence(20)
    both = TextsThenModel(texts, model, StepCost(64, {1: 1.0, 64: 1.0}), clock)
    for _ in range(steps):
        both.propose([Ask(turn, 4)])
        for token in (7, 7, 7) if right else (8,):
            turn.append(token, None)


MODEL_SAYS = Proposal((7, 7, 7), Source.DRAFT_MODEL, 1)


def test_the_model_is_asked_where_texts_say_nothing_sure() -> None:
    sure, model = Says(Proposal((1,), Source.SESSION, 9)), Says(MODEL_SAYS)
    run(sure, model, 0.1, right=True, steps=50)
    assert model.asked == 0
    run(Says(Proposal((1,), Source.SESSION, 2)), model, 0.1, right=True, steps=50)
    assert model.asked == 50


def test_a_model_that_is_wrong_or_slow_is_asked_now_and_then_only() -> None:
    for seconds, right in ((0.1, False), (50.0, True)):
        model = Says(MODEL_SAYS)
        run(Says(), model, seconds, right, steps=300)
        assert 3 <= model.asked < 80
