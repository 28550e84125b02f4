"""Speculation as a whole: asks proposers, chooses lengths, and learns from what comes."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from ..messages import DraftCounters
from ..sequence import Sequence
from .acceptance import Acceptance
from .draft_length import DraftLength
from .drafter import Branches, DraftRequest, VerifiedDraft
from .proposal import Agreement, Ask, Proposal, Proposer, Source
from .step_cost import StepCost

_FADE = 0.95  # of what a turn's guesses were worth
_DOUBT = 3.0  # tries for which a turn is taken for an average one
_MOST_TRUST = 1.25
_REST_AFTER = 8  # steps in which nothing paid; then a step is looked at now and then
_LONGEST_REST = 16


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

    def __init__(self, proposer: Proposer, cost: StepCost, longest: int) -> None:
        self._proposer = proposer
        self._cost = cost
        self._longest = longest
        self._acceptance = Acceptance(longest)
        self._length = DraftLength(cost)
        self._turns: dict[Sequence, _Turn] = {}
        self._counts = {source: _Counts() for source in Source}
        self._idle_steps = 0
        self._steps = 0

    def draft(self, requests: list[DraftRequest], budget: int) -> list[Branches]:
        """See ``Drafter``."""
        self._steps += 1
        if self._steps % self._rest:
            return [()] * len(requests)
        asks = [Ask(request.sequence, min(request.most, self._longest)) for request in requests]
        proposals = self._proposer.propose(asks)
        for request, found in zip(requests, proposals, strict=True):
            self._await_outcome(request.sequence, found)
        branches = self._choose(asks, proposals, min(budget, self._longest * len(requests)))
        self._idle_steps = 0 if any(branches) else self._idle_steps + 1
        return branches

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
                turn.note(self._acceptance.curve(proposal)[0], right > 0)
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

    def close(self) -> None:
        """See ``Drafter``."""
        self._proposer.close()

    @property
    def _rest(self) -> int:
        """Of so many steps one is looked at."""
        return 1 if self._idle_steps < _REST_AFTER else min(_LONGEST_REST, self._idle_steps // _REST_AFTER + 1)

    def _await_outcome(self, sequence: Sequence, proposals: list[Proposal]) -> None:
        turn = self._turns.get(sequence)
        if turn is None:
            turn = self._turns[sequence] = _Turn()
        turn.pending, turn.start = [p for p in proposals if p.token_ids], sequence.num_tokens

    def _choose(self, asks: list[Ask], proposals: list[list[Proposal]], budget: int) -> list[Branches]:
        """What of ``proposals`` to verify."""
        owners, worths = [], []
        for index, ask in enumerate(asks):
            turn = self._turns[ask.sequence]
            for proposal in turn.pending:
                owners.append((index, proposal))
                worths.append(self._worth(proposal, ask.most, turn.trust))
        branches: list[Branches] = [()] * len(asks)
        if owners:
            chosen = self._length.choose(np.array(worths), len(asks), budget).tolist()
            for (index, proposal), rows in zip(owners, chosen, strict=True):
                first = not branches[index] and proposal.agreement is not Agreement.SECOND
                length = rows if first else rows - 1
                if length > 0 and (first or branches[index]):
                    branches[index] = (*branches[index], tuple(proposal.token_ids[:length]))
        return branches

    def _worth(self, proposal: Proposal, most: int, trust: float) -> list[float]:
        """Tokens that each row for ``proposal`` is expected to bring, [longest + 1]; never more than the row before.

        A second guess takes a row for the token before it too: that row and the first draft's share what it brings.
        """
        count = min(len(proposal.token_ids), most)
        worth = [min(1.0, trust * p) for p in self._acceptance.curve(proposal)[:count]]
        if proposal.agreement is Agreement.SECOND and worth:
            half = (worth[0] + sum(worth[1:3])) / 4 if len(worth) > 2 else worth[0] / 2
            worth = [half, half, *(min(half, w) for w in worth[1:])]
        return worth + [0.0] * (self._longest + 1 - len(worth))


def _num_equal(guess: Many[int], came: list[int]) -> int:
    """How many tokens of ``guess`` are those that came, before the first that is not."""
    for index, (guessed, token) in enumerate(zip(guess, came, strict=False)):
        if guessed != token:
            return index
    return min(len(guess), len(came))
