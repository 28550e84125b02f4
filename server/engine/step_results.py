"""What becomes of a step's tokens: each turn gets those that follow it, as far as its drafts agree with them."""

from __future__ import annotations

import dataclasses
import itertools

from .batch import BlockTables
from .sampler import SampledToken, num_right
from .scheduler import Chunk, Scheduler, StepPlan
from .sequence import Sequence
from .speculation.drafter import Drafter, VerifiedDraft


@dataclasses.dataclass(slots=True)
class TokenCounters:
    """Since the start."""

    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    forced_tokens: int = 0


class StepResults:
    """Appends what was sampled to the turns, and tells scheduler and drafter."""

    def __init__(self, scheduler: Scheduler, tables: BlockTables, drafter: Drafter, block_size: int) -> None:
        self._scheduler = scheduler
        self._tables = tables
        self._drafter = drafter
        self._block_size = block_size
        self.counters = TokenCounters()

    def append(self, plan: StepPlan, sampled: list[SampledToken], now: float) -> list[Sequence]:
        """Give the turns of ``plan`` their tokens; returns those that got any. Some have a ``finish_reason`` then.

        What was sampled for turns that ended since the step was planned is thrown away.
        """
        tokens, advanced = iter(sampled), []
        ending = [chunk for chunk in plan.chunks if chunk.reaches_end]
        for sequence, group in itertools.groupby(ending, lambda chunk: chunk.sequence):  # branches are neighbours
            chunks = list(group)
            rows = [list(itertools.islice(tokens, chunk.num_rows)) for chunk in chunks]
            if sequence.finish_reason is not None:
                continue
            if sequence.first_token is None:
                sequence.first_token = now
            self._verify(chunks, rows)
            self.counters.forced_tokens += sequence.append_forced()
            advanced.append(sequence)
        return advanced

    def _verify(self, chunks: list[Chunk], sampled: list[list[SampledToken]]) -> None:
        """Append to the turn of ``chunks`` what was sampled behind the one whose drafts agree with it for longest."""
        right = [num_right(chunk.drafts, tokens) for chunk, tokens in zip(chunks, sampled, strict=True)]
        best = right.index(max(right))
        chunk, sequence = chunks[best], chunks[best].sequence
        appended = 0
        for token in sampled[best][: right[best] + 1]:
            sequence.append(token.token_id, token.logprobs)
            appended += 1
            if sequence.finish_reason is not None:
                break
        if self._scheduler.accept(chunks, chunk):
            self._tables.forget_from(sequence, chunk.start // self._block_size)
        self._note_drafts(chunks, chunk, min(right[best], appended), appended)

    def _note_drafts(self, chunks: list[Chunk], chosen: Chunk, accepted: int, appended: int) -> None:
        drafted = sum(len(chunk.drafts) for chunk in chunks)
        chosen.sequence.drafted_tokens += drafted
        chosen.sequence.accepted_tokens += accepted
        self.counters.generated_tokens += appended
        self.counters.drafted_tokens += drafted
        self.counters.accepted_tokens += accepted
        self._drafter.verified(
            chosen.sequence,
            [VerifiedDraft(chunk.drafts, accepted if chunk is chosen else 0) for chunk in chunks if chunk.drafts],
        )
