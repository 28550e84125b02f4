"""What is left of one step."""

from __future__ import annotations

from ..sequence import Sequence
from .plan import Chunk
from .stall_bound import StallBound
from .step_time import StepWork

CHUNK_MULTIPLE = 4  # tokens: a chunk that ends inside a prompt is cut to it, since kernels compute tiles of rows


class StepBudget:
    """Counts tokens and predicted work of a step that is being planned."""

    def __init__(self, max_tokens: int, bound: StallBound) -> None:
        self.tokens_left = max_tokens
        self.work = StepWork()
        self._bound = bound
        self._is_full = False

    @property
    def has_room(self) -> bool:
        """For at least one more token of prefill."""
        return not self._is_full and self.tokens_left > 0 and self._most(0) > 0

    def add_decodes(self, chunks: list[Chunk]) -> None:
        """Take the tokens of decodes and their drafts."""
        num_tokens = sum([chunk.num_tokens for chunk in chunks])
        self.tokens_left -= num_tokens
        self.work.add_decode(num_tokens, sum([chunk.start for chunk in chunks]))

    def take_prefill(self, sequence: Sequence) -> int:
        """How many tokens of ``sequence`` this step computes; they are taken."""
        wanted = sequence.num_uncomputed
        num_tokens = min(wanted, self.tokens_left, self._most(sequence.num_computed))
        if num_tokens < wanted:
            self._is_full = True
            num_tokens = max(0, num_tokens)
            if num_tokens > CHUNK_MULTIPLE:
                num_tokens -= num_tokens % CHUNK_MULTIPLE
        self.tokens_left -= num_tokens
        self.work.add_prefill(num_tokens, sequence.num_computed)
        return num_tokens

    def _most(self, context: int) -> int:
        return self._bound.most_prefill(self.work, context) if self.work.decode_tokens else self.tokens_left
