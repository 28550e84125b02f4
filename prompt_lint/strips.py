"""What the HTML report draws: for each request of a lineage, how much was reused."""

from __future__ import annotations

from dataclasses import dataclass

from .lineage import Entry
from .prompt import Prompt

_MOST_REQUESTS = 4000


@dataclass(frozen=True, slots=True)
class Strip:
    """One request: tokens reused, and tokens in all."""

    file: str
    index: int
    session: str | None
    parent: int | None
    reused: int
    total: int


class StripRecorder:
    """Keeps the numbers of the first requests of a trace."""

    def __init__(self) -> None:
        self.strips: list[Strip] = []

    def record(self, prompt: Prompt, parent: Entry | None, reused: int) -> None:
        """Note one request."""
        if len(self.strips) >= _MOST_REQUESTS:
            return
        total = prompt.tokens
        request = prompt.request
        number = parent.prompt.request.index if parent else None
        self.strips.append(Strip(request.file, request.index, request.session, number, min(reused, total), total))
