"""Speculation as a whole: asks proposers, chooses lengths, and learns from what comes."""

from __future__ import annotations

import time
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..messages import DraftCounters
from ..sequence import Sequence
from .acceptance import Acceptance
from .draft_length import DraftLength
from .drafter import Branches, DraftRequest, VerifiedDraft
from .past_outputs import PastOutputs
from .proposal import Agreement, Ask, Proposal, Proposer, Source
from .step_cost import StepCost

_FADE = 0.95  # of what a turn's guesses were worth
_DOUBT = 3.0  # tries for which a turn is taken for an average one
_MOST_TRUST = 2.0
_REST_AFTER = 8  # steps in which nothing paid; then a step is looked at now and then
_LONGEST_REST = 4
_MOST_GUESSING_S = 0.4e-3  # in a step
_LEAST_ASKS = 8
_ASK_FADE = 0.05


class _Turn:
    """How guesses for one turn went, and those whose outcome is awaited."""

    __slots__ = ("expected", "hits", "pending", "start")

    def __init__(self) -> None:
        self.pending: list[Proposal] = []
        self.start = 0  # tokens of the turn when they were guessed
        self.expected = 0.0
        self.hits = 0.0

    @property
    def trust(self) -> float:
        """Right guesses over those that were to be expected."""
        return min(_MOST_TRUST, (self.hits + _DOUBT) / (self.expected + _DOUBT))

    def note(self, expected: float, hit: bool) -> None:
        self.expected = self.expected * _FADE + expected
        self.hits = self.hits * _FADE + hit


@dataclass(slots=True)
class _Counts:
    drafted: int = 0
    accepted: int = 0

    def note(self, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted


class Speculator:
    """The engine's ``Drafter``.

    Guesses are made even where their verification does not pay: the token that comes says whether they were right, at
    no cost but the guess's own. So speculation that was off comes back when it would pay again. When it has not paid
    for a while, only some steps are looked at.
    """

    def __init__(self, proposer: Proposer, cost: StepCost, longest: int, outputs: PastOutputs | None = None) -> None:
        """``outputs``: what ``proposer`` remembers of past turns, if anything."""
        self._proposer = proposer
        self._outputs = outputs
        self._cost = cost
        self._longest = longest
        self._acceptance = Acceptance(longest)
        self._length = DraftLength(cost)
        self._turns: dict[Sequence, _Turn] = {}
        self._counts = {source: _Counts() for source in Source}
        self._idle_steps = 0
        self._steps = 0
        self._ask_s = _MOST_GUESSING_S / _LEAST_ASKS  # of guessing for one turn, recently

    def draft(self, requests: list[DraftRequest], budget: int) -> list[Branches]:
        """See ``Drafter``."""
        branches: list[Branches] = [()] * len(requests)
        if self.skips():
            return branches
        self._steps += 1
        started = time.perf_counter()
        places = self._places(requests)
        asks = [Ask(requests[place].sequence, min(requests[place].most, self._longest)) for place in places]
        for ask, found in zip(asks, self._proposer.propose(asks), strict=True):
            self._await_outcome(ask.sequence, found)
        chosen = self._choose(asks, len(requests), min(budget, self._longest * len(requests)))
        for place, guesses in zip(places, chosen, strict=True):
            branches[place] = guesses
        self._idle_steps = 0 if any(chosen) else self._idle_steps + 1
        self._ask_s += _ASK_FADE * ((time.perf_counter() - started) / len(asks) - self._ask_s)
        return branches

    def skips(self) -> bool:
        """See ``Drafter``."""
        if (self._steps + 1) % self._rest == 0:
            return False
        self._steps += 1
        return True

    def verified(self, sequence: Sequence, verified: list[VerifiedDraft]) -> None:
        """See ``Drafter``."""
        turn = self._turns.get(sequence)
        if turn is None or not turn.pending:
            return
        pending, turn.pending = turn.pending, []
        came = sequence.token_ids[turn.start :].tolist()
        for number, proposal in enumerate(pending):
            right = _num_equal(proposal.token_ids, came)
            if number == 0:
                turn.note(float(self._acceptance.curve(proposal)[0]), right > 0)
            self._acceptance.observe(proposal, right, len(came))
            for draft in verified:
                if draft.token_ids[0] == proposal.token_ids[0]:
                    self._counts[proposal.source].note(len(draft.token_ids), draft.accepted)

    def stepped(self, rows: int, seconds: float) -> None:
        """See ``Drafter``."""
        self._cost.observe(rows, seconds)

    def ended(self, sequence: Sequence) -> None:
        """See ``Drafter``."""
        self._turns.pop(sequence, None)
        self._proposer.ended(sequence)

    def counters(self) -> tuple[DraftCounters, ...]:
        """See ``Drafter``."""
        return tuple(
            DraftCounters(source=source.name.lower(), drafted=counts.drafted, accepted=counts.accepted)
            for source, counts in self._counts.items()
        )

    @property
    def num_damaged_files(self) -> int:
        """See ``Drafter``."""
        return 0 if self._outputs is None else self._outputs.num_damaged_files

    def close(self) -> None:
        """See ``Drafter``."""
        self._proposer.close()

    @property
    def _rest(self) -> int:
        """Of so many steps one is looked at."""
        return 1 if self._idle_steps < _REST_AFTER else min(_LONGEST_REST, self._idle_steps // _REST_AFTER + 1)

    def _places(self, requests: list[DraftRequest]) -> list[int]:
        """Which of ``requests`` to guess for: as many as there is time for. First the turns whose guesses were right
        most often; a quarter of the places goes round."""
        most = max(_LEAST_ASKS, int(_MOST_GUESSING_S / self._ask_s))
        if len(requests) <= most:
            return list(range(len(requests)))
        hits = [self._turns.setdefault(request.sequence, _Turn()).hits for request in requests]
        best = sorted(range(len(requests)), key=hits.__getitem__, reverse=True)
        sure, rest = best[: most - most // 4], best[most - most // 4 :]
        return sorted([*sure, *(rest[(self._steps + i * len(rest) // most) % len(rest)] for i in range(most // 4))])

    def _await_outcome(self, sequence: Sequence, proposals: list[Proposal]) -> None:
        turn = self._turns.get(sequence)
        if turn is None:
            turn = self._turns[sequence] = _Turn()
        turn.pending, turn.start = [p for p in proposals if p.token_ids], sequence.num_tokens

    def _choose(self, asks: list[Ask], turns: int, budget: int) -> list[Branches]:
        """What to verify of the guesses for ``asks``, in a step of ``turns``."""
        owners: list[tuple[int, Proposal]] = []
        curves, trusts, counts = [], [], []
        for index, ask in enumerate(asks):
            turn = self._turns[ask.sequence]
            for proposal in turn.pending:
                owners.append((index, proposal))
                curves.append(self._acceptance.curve(proposal))
                trusts.append(turn.trust)
                counts.append(min(len(proposal.token_ids), ask.most))
        branches: list[Branches] = [()] * len(asks)
        if not owners:
            return branches
        worth = np.minimum(np.array(curves) * np.array(trusts)[:, None], 1.0)
        worth[np.arange(self._longest) >= np.array(counts)[:, None]] = 0.0
        is_second = np.array([proposal.agreement is Agreement.SECOND for _, proposal in owners])
        chosen = self._length.choose(_by_row(worth, is_second), turns, budget).tolist()
        for (index, proposal), rows, second in zip(owners, chosen, is_second.tolist(), strict=True):
            length = rows - 1 if second else rows
            if length > 0 and bool(branches[index]) == second:
                branches[index] = (*branches[index], tuple(proposal.token_ids[:length]))
        return branches


def _by_row(worth: npt.NDArray[np.float64], is_second: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """What each row of logits is expected to bring, [guesses, longest + 1], from what each draft is.

    A second guess takes a row for the token before it too: that row and the first draft's share what they bring.
    """
    rows = np.zeros((worth.shape[0], worth.shape[1] + 1))
    rows[:, :-1] = worth
    if is_second.any():
        seconds = worth[is_second]
        half = seconds[:, :1] / 2
        rows[is_second] = np.concatenate([half, half, np.minimum(seconds[:, 1:], half)], axis=1)
    return rows


def _num_equal(guess: Many[int], came: list[int]) -> int:
    """How many tokens of ``guess`` are those that came, before the first that is not."""
    for index, (guessed, token) in enumerate(zip(guess, came, strict=False)):
        if guessed != token:
            return index
    return min(len(guess), len(came))
