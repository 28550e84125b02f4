"""What the scheduler asks of whoever guesses tokens."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from ..sequence import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class DraftRequest:
    """Guess the next tokens of ``sequence``, at most ``most`` of them: more could not be used."""

    sequence: Sequence
    most: int


class Drafter(Protocol):
    """Guesses what decoding turns will say next."""

    def draft(self, requests: list[DraftRequest], budget: int) -> list[tuple[int, ...]]:
        """The guesses for each of ``requests``, none where that does not pay; at most ``budget`` tokens together."""
        ...
