"""How often guesses turn out right, measured as they do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .proposal import Agreement, Proposal, Source

_BUCKET_ENDS = (1, 2, 3, 4, 6, 9, 15)  # of match lengths; the last bucket has no end
_NUM_BUCKETS = len(_BUCKET_ENDS) + 1
_LENGTHS = 128  # of matches, and of guesses behind them
_BUCKETS = [sum(length > end for end in _BUCKET_ENDS) for length in range(_LENGTHS)]
_LONGEST_THAT_DIFFERS = _BUCKET_ENDS[-1] + 1  # longer matches are all in the last bucket
_NUM_AGREEMENTS = len(Agreement)
# Right first tokens, by how the places agree and how long they match, as measured on agents' outputs: a start that what
# happens soon outweighs.
_PRIORS = {
    Agreement.SINGLE: (0.2, 0.43, 0.5, 0.58, 0.66, 0.7, 0.8, 0.87),
    Agreement.UNANIMOUS: (0.3, 0.66, 0.83, 0.87, 0.9, 0.92, 0.94, 0.97),
    Agreement.SPLIT: (0.15, 0.28, 0.28, 0.3, 0.4, 0.4, 0.4, 0.5),
    Agreement.SECOND: (0.05, 0.12, 0.13, 0.15, 0.15, 0.1, 0.06, 0.04),
}
_PRIOR_OF_FURTHER = (0.5, 0.62, 0.75, 0.8, 0.85, 0.87, 0.9, 0.95)
_PRIOR_WEIGHT = 8.0
_MEMORY = 64.0  # tries that count; older ones fade
_FADE = 1.0 - 1.0 / _MEMORY
_REFRESH = 64  # observations after which curves are computed anew


class Acceptance:
    """The probability that a guess is right, by its source, the agreement it stands on and the length of its match,
    for its first token and for further ones, given that those before are right (the match is longer then)."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._tries: list[float] = []
        self._hits: list[float] = []
        for _ in Source:
            for agreement in Agreement:
                for priors in (_PRIORS[agreement], _PRIOR_OF_FURTHER):
                    self._tries += [_PRIOR_WEIGHT] * _NUM_BUCKETS
                    self._hits += [_PRIOR_WEIGHT * prior for prior in priors]
        self._curves: dict[int, npt.NDArray[np.float64]] = {}
        self._observed = 0

    def curve(self, proposal: Proposal) -> npt.NDArray[np.float64]:
        """For each place in a guess like this one the probability that all tokens up to it are right, [longest]."""
        length = min(proposal.match_length, _LONGEST_THAT_DIFFERS)
        key = (proposal.source * _NUM_AGREEMENTS + proposal.agreement) * _LENGTHS + length
        curve = self._curves.get(key)
        if curve is None:
            curve = self._curves[key] = self._compute(proposal)
        return curve

    def observe(self, proposal: Proposal, right: int, known: int) -> None:
        """Of ``proposal`` the first ``right`` tokens turned out right, and no more, of ``known`` that came."""
        for index in range(min(right + 1, known, len(proposal.token_ids))):
            place = _class(proposal, index)
            tries = self._tries[place]
            if tries < _MEMORY:
                self._tries[place] = tries + 1.0
                self._hits[place] += index < right
            else:
                self._tries[place] = tries * _FADE + 1.0
                self._hits[place] = self._hits[place] * _FADE + (index < right)
        self._observed += 1
        if self._observed % _REFRESH == 0:
            self._curves.clear()

    def _compute(self, proposal: Proposal) -> npt.NDArray[np.float64]:
        curve, probability = [], 1.0
        for index in range(self._longest):
            place = _class(proposal, index)
            probability *= self._hits[place] / self._tries[place]
            curve.append(probability)
        return np.array(curve)


def _class(proposal: Proposal, index: int) -> int:
    kind = (proposal.source * _NUM_AGREEMENTS + proposal.agreement) * 2 + (index > 0)
    return kind * _NUM_BUCKETS + _BUCKETS[proposal.match_length + index]
