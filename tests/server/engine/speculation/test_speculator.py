"""Speculation stops where it does not pay, and comes back; texts are indexed once in a conversation."""

from __future__ import annotations

import numpy as np

from sessile.server.engine.messages import SubmitTurn
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.sequence import Sequence
from sessile.server.engine.speculation.drafter import DraftRequest, VerifiedDraft
from sessile.server.engine.speculation.proposal import Agreement, Ask, Proposal, Source
from sessile.server.engine.speculation.session_texts import SessionTexts
from sessile.server.engine.speculation.speculator import Speculator
from sessile.server.engine.speculation.step_cost import StepCost

ROWS_COST_HALF = {rows: 1.0 + 0.5 * (rows - 1) for rows in range(1, 65)}
MIB = 2**20


def turn(number: int = 0, prompt: list[int] | None = None, most: int = 4000) -> Sequence:
    submitted = SubmitTurn(turn_id=str(number), token_ids=prompt or [1, 2, 3], sampling=SamplingParams())
    return Sequence(submitted, most, 0.0, number)


class Counting:
    """Guesses that the next tokens are 5, 5, 5, 5."""

    def __init__(self, *others: Proposal) -> None:
        self.asked = 0
        self._proposals = [Proposal((5, 5, 5, 5), Source.SESSION, 4), *others]

    def propose(self, asks: list[Ask]) -> list[list[Proposal]]:
        self.asked += len(asks)
        return [list(self._proposals) for _ in asks]

    def ended(self, sequence: Sequence) -> None: ...

    def close(self) -> None: ...


def steps(speculator: Speculator, sequences: list[Sequence], count: int, says: int) -> list[int]:
    """Drafts of each step; all turns always say ``says``."""
    drafted = []
    for _ in range(count):
        branches = speculator.draft([DraftRequest(sequence, 100) for sequence in sequences], 63)
        drafted.append(sum(len(draft) for each in branches for draft in each))
        for sequence, each in zip(sequences, branches, strict=True):
            accepted = next((i for i, token in enumerate(each[0]) if token != says), len(each[0])) if each else 0
            for _ in range(accepted + 1):
                sequence.append(says, None)
            speculator.verified(
                sequence, [VerifiedDraft(draft, 0 if number else accepted) for number, draft in enumerate(each)]
            )
    return drafted


def test_it_stops_where_guesses_are_wrong_and_comes_back_when_they_are_right() -> None:
    proposer = Counting()
    speculator = Speculator(proposer, StepCost(64, ROWS_COST_HALF), longest=7)
    sequence = turn()
    steps(speculator, [sequence], 60, says=9)
    before = proposer.asked
    assert steps(speculator, [sequence], 160, says=9) == [0] * 160, "wrong guesses cost no rows"
    assert proposer.asked - before < 50, "nor the time to make them"
    back = steps(speculator, [sequence], 400, says=5)
    assert sum(back[-50:]) >= 150, "what was only looked at told that it pays again"


def test_a_turn_that_is_wrong_is_believed_less_than_others() -> None:
    speculator = Speculator(Counting(), StepCost(64, ROWS_COST_HALF), longest=7)
    right, wrong = turn(0), turn(1)
    for _ in range(120):
        branches = speculator.draft([DraftRequest(right, 100), DraftRequest(wrong, 100)], 63)
        for sequence, each, says in ((right, branches[0], 5), (wrong, branches[1], 9)):
            accepted = len(each[0]) if each and says == 5 else 0
            for _ in range(accepted + 1):
                sequence.append(says, None)
            speculator.verified(sequence, [VerifiedDraft(draft, accepted) for draft in each])
    last = speculator.draft([DraftRequest(right, 100), DraftRequest(wrong, 100)], 63)
    assert sum(map(len, last[0])) > sum(map(len, last[1]))


def test_drafts_are_counted_by_source() -> None:
    second = Proposal((6, 6), Source.OUTPUTS, 4, Agreement.SECOND)
    speculator = Speculator(Counting(second), StepCost(64, {1: 1.0, 64: 1.0}), longest=7)
    drafted = sum(steps(speculator, [turn()], 40, says=5))
    counters = {each.source: each for each in speculator.counters()}
    assert counters["session"].drafted + counters["outputs"].drafted == drafted
    assert counters["session"].accepted == counters["session"].drafted > 0
    assert counters["outputs"].accepted == 0


def test_with_many_turns_some_are_asked_in_a_step_and_all_of_them_in_time() -> None:
    proposer = Counting()
    speculator = Speculator(proposer, StepCost(1024, {1: 1.0, 1024: 1.0}), longest=7)
    speculator._ask_s = 1.0  # guessing takes for ever: the fewest are asked
    sequences = [turn(number) for number in range(200)]
    seen: set[Sequence] = set()
    for _ in range(600):
        speculator._ask_s = 1.0
        requests = [DraftRequest(sequence, 100) for sequence in sequences]
        branches = speculator.draft(requests, 800)
        seen |= {sequence for sequence, each in zip(sequences, branches, strict=True) if each}
        assert sum(map(bool, branches)) <= 8
    assert len(seen) > 150


def text(*tokens: int) -> list[int]:
    return [*range(40), *tokens]


def test_the_next_turn_goes_on_with_the_conversations_index() -> None:
    texts = SessionTexts(MIB)
    first = turn(0, text(7, 8))
    index = texts.text_of(first)
    first.append(9, None)
    texts.text_of(first)
    texts.ended(first)
    second = turn(1, text(7, 8, 9, 10, 11))
    assert texts.text_of(second) is index
    assert index is not None and index.token_ids.tolist() == text(7, 8, 9, 10, 11)
    texts.ended(second)
    rolled_back = turn(2, text(7, 50))
    assert texts.text_of(rolled_back) is index
    assert index.token_ids.tolist() == text(7, 50)
    fork = turn(3, text(7, 60))
    other = texts.text_of(fork)
    assert other is not index and other is not None and other.token_ids.tolist() == text(7, 60)


def test_kept_texts_are_bounded() -> None:
    texts = SessionTexts(64 * 1024)
    rng = np.random.default_rng(0)
    for number in range(60):
        sequence = turn(number, rng.integers(0, 1000, 500).tolist())
        texts.begin_step()
        texts.text_of(sequence)
        texts.ended(sequence)
        assert texts.num_bytes <= 64 * 1024
    assert texts.num_tokens >= 3000


def test_a_long_text_is_indexed_in_several_steps() -> None:
    texts = SessionTexts(MIB)
    long, short = turn(0, list(range(10_000))), turn(1, [1, 2, 3])
    ready = []
    for _ in range(4):
        texts.begin_step()
        ready.append((texts.text_of(long) is not None, texts.text_of(short) is not None))
    assert ready == [(False, False), (False, False), (True, True), (True, True)]
