"""What the scheduler and the step ask of speculation."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from ..messages import DraftCounters
from ..sequence import Sequence

# The guesses for one turn: the first, then others that begin with other tokens; none at all is ().
Branches: TypeAlias = tuple[tuple[int, ...], ...]


class DraftRequest(NamedTuple):
    """Guess the next tokens of ``sequence``, at most ``most`` of them: more could not be used."""

    sequence: Sequence
    most: int


class VerifiedDraft(NamedTuple):
    """A guess as it was computed, at its full length or cut short, and how many tokens of it were accepted: 0 for all
    guesses of a turn but one."""

    token_ids: tuple[int, ...]
    accepted: int


class Drafter(Protocol):
    """Guesses what decoding turns will say next, and hears how it went."""

    def draft(self, requests: list[DraftRequest], budget: int) -> list[Branches]:
        """The guesses for each of ``requests``, none where that does not pay; at most ``budget`` tokens together, of
        which each guess but a turn's first takes one more than its own."""
        ...

    def skips(self) -> bool:
        """Whether the coming step goes without guesses, whatever tokens the turns have by then; if so it is counted
        here, and ``draft`` is not called for it."""
        ...

    def verified(self, sequence: Sequence, verified: list[VerifiedDraft]) -> None:
        """``sequence`` got its tokens of a step, in which these guesses were computed."""
        ...

    def stepped(self, rows: int, seconds: float) -> None:
        """The model took ``seconds`` for a step of decodes and their drafts alone, ``rows`` together."""
        ...

    def ended(self, sequence: Sequence) -> None:
        """The turn has ended."""
        ...

    def counters(self) -> tuple[DraftCounters, ...]:
        """By source, since the start."""
        ...

    @property
    def num_damaged_files(self) -> int:
        """Files of past outputs that were thrown away since the start."""
        ...

    def close(self) -> None:
        """Nothing else is called afterwards."""
        ...


class NoDrafts:
    """Guesses nothing; see ``Drafter``."""

    num_damaged_files = 0

    def draft(self, requests: list[DraftRequest], budget: int) -> list[Branches]:
        return [() for _ in requests]

    def skips(self) -> bool:
        return True

    def verified(self, sequence: Sequence, verified: list[VerifiedDraft]) -> None:
        pass

    def stepped(self, rows: int, seconds: float) -> None:
        pass

    def ended(self, sequence: Sequence) -> None:
        pass

    def counters(self) -> tuple[DraftCounters, ...]:
        return ()

    def close(self) -> None:
        pass
