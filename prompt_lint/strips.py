"""What the HTML report draws: for each request of a lineage, how much was reused, lost and new."""

from __future__ import annotations

from dataclasses import dataclass

from .lineage import Entry, Match
from .prompt import CHARS_PER_TOKEN, Prompt

_MOST_REQUESTS = 4000


@dataclass(frozen=True, slots=True)
class Strip:
    """One request: tokens reused, tokens that its parent had and that were computed again, tokens in all."""

    file: str
    index: int
    session: str | None
    parent: int | None
    reused: int
    possible: int
    total: int


class StripRecorder:
    """Keeps the numbers of the first requests of a trace."""

    def __init__(self) -> None:
        self.strips: list[Strip] = []

    def record(self, prompt: Prompt, parent: Entry | None, reused: int, match: Match) -> None:
        """Note one request."""
        if len(self.strips) >= _MOST_REQUESTS:
            return
        total = prompt.tokens
        possible = reused
        if parent is not None:
            possible = max(reused, min(total, parent.prompt.total_chars // CHARS_PER_TOKEN))
        request = prompt.request
        number = parent.prompt.request.index if parent else None
        self.strips.append(
            Strip(request.file, request.index, request.session, number, min(reused, total), min(possible, total), total)
        )
