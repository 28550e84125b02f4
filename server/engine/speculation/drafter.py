"""What the scheduler and the step ask of speculation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..messages import DraftCounters
from ..sequence import Sequence


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """Guess the next tokens of ``sequence``, at most ``most`` of them: more could not be used."""

    sequence: Sequence
    most: int


class Drafter(Protocol):
    """Guesses what decoding turns will say next, and hears how it went."""

    def draft(self, requests: list[DraftRequest], budget: int) -> list[tuple[int, ...]]:
        """The guesses for each of ``requests``, none where that does not pay; at most ``budget`` tokens together."""
        ...

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """``sequence`` got its tokens of a step: of ``drafted`` guesses that were computed, ``accepted`` are right."""
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

    def close(self) -> None:
        """Nothing else is called afterwards."""
        ...


class NoDrafts:
    """Guesses nothing; see ``Drafter``."""

    def draft(self, requests: list[DraftRequest], budget: int) -> list[tuple[int, ...]]:
        return [() for _ in requests]

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        pass

    def stepped(self, rows: int, seconds: float) -> None:
        pass

    def ended(self, sequence: Sequence) -> None:
        pass

    def counters(self) -> tuple[DraftCounters, ...]:
        return ()

    def close(self) -> None:
        pass
