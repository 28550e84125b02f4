"""A draft model where texts have nothing to say, as long as it saves more time than it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..sequence import Sequence
from .proposal import Agreement, Ask, Proposal, Proposer
from .step_cost import StepCost

_SURE_MATCH = 3  # behind so many tokens that agree a text is believed
_FADE = 0.1
_PROBE_EVERY = 64  # steps, while it does not pay


class TextsThenModel:
    """Asks ``model`` for the turns that ``texts`` say nothing sure about. A guess of the model costs its own steps, so
    what they took and how much of the guesses came true is compared with what a step of the large model takes."""

    def __init__(
        self, texts: Proposer, model: Proposer, cost: StepCost, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._texts = texts
        self._model = model
        self._cost = cost
        self._clock = clock
        self._awaited: dict[Sequence, tuple[int, Proposal]] = {}  # at how many tokens it was guessed
        self._seconds = 0.0  # of the model's steps, recently
        self._right = 2.0  # tokens of a guess that came true, recently; an optimist's start
        self._steps = 0

    def propose(self, asks: list[Ask]) -> list[list[Proposal]]:
        """See ``Proposer``."""
        self._steps += 1
        found = self._texts.propose(asks)
        self._learn(asks)
        unsure = [place for place, proposals in enumerate(found) if not _is_sure(proposals)]
        if not unsure or not (self._pays(len(unsure)) or self._steps % _PROBE_EVERY == 0):
            return found
        started = self._clock()
        guesses = self._model.propose([asks[place] for place in unsure])
        self._seconds += _FADE * (self._clock() - started - self._seconds)
        for place, proposals in zip(unsure, guesses, strict=True):
            if proposals:
                found[place] = proposals
                sequence = asks[place].sequence
                self._awaited[sequence] = sequence.num_tokens, proposals[0]
        return found

    def ended(self, sequence: Sequence) -> None:
        """See ``Proposer``."""
        self._awaited.pop(sequence, None)
        self._texts.ended(sequence)
        self._model.ended(sequence)

    def close(self) -> None:
        """See ``Proposer``."""
        self._texts.close()
        self._model.close()

    def _pays(self, turns: int) -> bool:
        """Right tokens save a share of a large step each."""
        return self._right * self._cost.seconds(turns) >= self._seconds

    def _learn(self, asks: list[Ask]) -> None:
        for ask in asks:
            awaited = self._awaited.pop(ask.sequence, None)
            if awaited is not None:
                at, proposal = awaited
                came = ask.sequence.token_ids[at:].tolist()
                right = 0
                while right < min(len(came), len(proposal.token_ids)) and came[right] == proposal.token_ids[right]:
                    right += 1
                self._right += _FADE * (right - self._right)


def _is_sure(proposals: list[Proposal]) -> bool:
    if not proposals:
        return False
    return proposals[0].match_length >= _SURE_MATCH and proposals[0].agreement is not Agreement.SPLIT
