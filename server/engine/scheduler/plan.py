"""What one step does."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from ....sessions.cache.prefix_cache import BlockCopy
from ..block_loads import BlockLoad
from ..sequence import Sequence
from .step_time import StepWork


class Chunk(NamedTuple):
    """Compute ``num_tokens`` tokens of ``sequence`` from ``start`` on, of which the last are ``drafts``: guesses that
    stand behind the sequence's own tokens. ``blocks``, where there are any, are its blocks from that of ``start`` on,
    instead of the sequence's: see ``draft_planner``. One that ``awaits_token`` computes the token that the step before
    samples, which the sequence has not got yet: see ``look_ahead``."""

    sequence: Sequence
    start: int
    num_tokens: int
    drafts: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    awaits_token: bool = False

    @property
    def num_own_tokens(self) -> int:
        return self.num_tokens - len(self.drafts)

    @property
    def reaches_end(self) -> bool:
        """The sequence's last token is computed too, so the next one can be sampled."""
        return self.awaits_token or self.start + self.num_tokens - len(self.drafts) == self.sequence.num_tokens

    @property
    def num_rows(self) -> int:
        """Rows of logits that it yields."""
        return 1 + len(self.drafts) if self.reaches_end else 0


@dataclasses.dataclass(slots=True)
class StepPlan:
    """One step: do ``copies`` first, then start ``loads`` and compute ``chunks``. The turns in ``preempted`` gave their
    blocks back; those in ``expired`` have waited past their deadline and ended.

    Copies come before all else that writes to the pool: the source of one may already belong to somebody else.
    """

    chunks: list[Chunk] = dataclasses.field(default_factory=list)
    copies: list[BlockCopy] = dataclasses.field(default_factory=list)
    loads: list[BlockLoad] = dataclasses.field(default_factory=list)
    preempted: list[Sequence] = dataclasses.field(default_factory=list)
    expired: list[Sequence] = dataclasses.field(default_factory=list)
    work: StepWork = dataclasses.field(default_factory=StepWork)
    predicted_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        return sum([chunk.num_tokens for chunk in self.chunks])

    @property
    def only_decodes(self) -> bool:
        """Each chunk is a token that was sampled last, and drafts behind it."""
        return all(chunk.num_own_tokens == 1 and chunk.reaches_end for chunk in self.chunks)
