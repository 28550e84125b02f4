"""Speculation as a whole: asks proposers, chooses lengths, and learns from what comes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..messages import DraftCounters
from ..sequence import Sequence
from .acceptance import Acceptance
from .draft_length import DraftLength
from .drafter import DraftRequest
from .proposal import Ask, Proposal, Proposer, Source
from .step_cost import StepCost

_FADE = 0.95  # of what a turn's guesses were worth
_DOUBT = 3.0  # tries for which a turn is taken for an average one
_MOST_TRUST = 1.25
_REST_AFTER = 8  # steps in which nothing paid; then a step is looked at now and then
_LONGEST_REST = 16


class _Turn:
    """How guesses for one turn went, and the one whose outcome is awaited."""

    __slots__ = ("expected", "hits", "pending", "start")

    def __init__(self) -> None:
        self.pending: Proposal | None = None
        self.start = 0  # tokens of the turn when it was guessed
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

    def draft(self, requests: list[DraftRequest], budget: int) -> list[tuple[int, ...]]:
        """See ``Drafter``."""
        self._steps += 1
        nothing: list[tuple[int, ...]] = [()] * len(requests)
        if self._steps % self._rest:
            return nothing
        asks = [Ask(request.sequence, min(request.most, self._longest)) for request in requests]
        proposals = [found[0] if found else None for found in self._proposer.propose(asks)]
        lengths = self._choose(requests, proposals, min(budget, self._longest * len(requests)))
        self._idle_steps = 0 if any(lengths) else self._idle_steps + 1
        return [
            () if proposal is None else tuple(proposal.token_ids[:length])
            for proposal, length in zip(proposals, lengths, strict=True)
        ]

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """See ``Drafter``."""
        turn = self._turns.get(sequence)
        if turn is None or turn.pending is None:
            return
        proposal, turn.pending = turn.pending, None
        came = sequence.token_ids[turn.start :].tolist()
        right = 0
        for guess, token in zip(proposal.token_ids, came, strict=False):
            if guess != token:
                break
            right += 1
        turn.note(self._acceptance.curve(proposal)[0], right > 0)
        self._acceptance.observe(proposal, right, len(came))
        counts = self._counts[proposal.source]
        counts.drafted += drafted
        counts.accepted += accepted

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

    def _choose(self, requests: list[DraftRequest], proposals: list[Proposal | None], budget: int) -> list[int]:
        """How many tokens of each of ``proposals`` to verify."""
        rows, curves = [], []
        for index, (request, proposal) in enumerate(zip(requests, proposals, strict=True)):
            if proposal is None or not proposal.token_ids:
                continue
            turn = self._turns.get(request.sequence)
            if turn is None:
                turn = self._turns[request.sequence] = _Turn()
            turn.pending, turn.start = proposal, request.sequence.num_tokens
            trust, count = turn.trust, min(len(proposal.token_ids), request.most)
            curve = self._acceptance.curve(proposal)
            curves.append([trust * p for p in curve[:count]] + [0.0] * (self._longest - count))
            rows.append(index)
        lengths = [0] * len(requests)
        if rows:
            chosen = self._length.choose(np.minimum(np.array(curves), 1.0), len(requests), budget)
            for index, length in zip(rows, chosen.tolist(), strict=True):
                lengths[index] = length
        return lengths
