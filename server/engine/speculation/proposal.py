"""What a proposer guesses, and how sure it can be."""

from __future__ import annotations

import enum
from collections.abc import Sequence as Many
from typing import NamedTuple, Protocol

from ..sequence import Sequence


class Source(enum.IntEnum):
    """Where a guess comes from. Of guesses that are equally good otherwise, the one of the higher source is taken."""

    SESSION = 0  # the conversation's own tokens
    OUTPUTS = 1  # what turns of the same tenant said before
    EXPECTED = 2  # text that the turn was said to repeat
    DRAFT_MODEL = 3  # a smaller model


class Agreement(enum.IntEnum):
    """How the places with the longest match go on."""

    SINGLE = 0  # there is only one
    UNANIMOUS = 1  # all in the same way
    SPLIT = 2  # in several ways, of which the most frequent is guessed
    SECOND = 3  # and this guess is another one, in case that one is wrong


class Proposal(NamedTuple):
    """A guess of what comes next: ``token_ids``, and the number of tokens before them that agree."""

    token_ids: Many[int]
    source: Source
    match_length: int
    agreement: Agreement = Agreement.SINGLE


class Ask(NamedTuple):
    """Guess at most ``most`` tokens of ``sequence``, of which all tokens so far are known."""

    sequence: Sequence
    most: int


class Proposer(Protocol):
    """The seam for whatever guesses: texts, a draft model, heads on the model's hidden states (EAGLE, Medusa).

    A proposer may be wrong as often as it likes. What it costs is measured, and it is not asked where it does not pay.
    """

    def propose(self, asks: list[Ask]) -> list[list[Proposal]]:
        """For each of ``asks`` the best guess first, then others that begin with other tokens; none if there is none.

        The turns are in one step, so a model can guess for all of them in one batch.
        """
        ...

    def ended(self, sequence: Sequence) -> None:
        """The turn has ended, and no more is asked for it. A preempted one has not ended."""
        ...

    def close(self) -> None:
        """Nothing else is called afterwards."""
        ...
