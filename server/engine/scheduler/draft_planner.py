"""Puts drafts behind the decodes of a step, and takes back what of them was rejected.

The first guess for a turn stands behind its tokens in its own blocks. Further ones, which begin with other tokens, are
branches: chunks that compute the turn's last token and their drafts again, in blocks of their own behind the turn's
full ones.

    the turn's blocks     [ full ][ full ][ half | last token, drafts ]
    a branch's own                        [ copy | last token, drafts ]

After the step one of them holds what was accepted; its blocks become the turn's, the others' are given back. So drafts
hold no block between steps, and nobody is preempted for them.
"""

from __future__ import annotations

from ....sessions.cache.prefix_cache import PrefixCache
from ..sequence import Sequence
from ..speculation.drafter import Branches, Drafter, DraftRequest
from .plan import Chunk, StepPlan


class DraftPlanner:
    """Asks the drafter (None: nobody guesses), as far as ``max_batch_tokens`` and the blocks of ``cache`` allow it."""

    def __init__(self, cache: PrefixCache, drafter: Drafter | None, max_batch_tokens: int) -> None:
        self._cache = cache
        self._drafter = drafter
        self._max_batch_tokens = max_batch_tokens

    def add_to(self, plan: StepPlan) -> None:
        """Put drafts behind the decodes that ``plan`` consists of."""
        if self._drafter is None or not plan.chunks:
            return
        budget = self._max_batch_tokens - plan.num_tokens
        requests = [
            DraftRequest(chunk.sequence, max(0, chunk.sequence.num_tokens_left - 1) if chunk.reaches_end else 0)
            for chunk in plan.chunks
        ]
        guesses = self._drafter.draft(requests, budget)
        if not any(guesses):
            return
        decodes, plan.chunks = plan.chunks, []
        for chunk, request, branches in zip(decodes, requests, guesses, strict=True):
            if branches:
                budget -= self._add_chunks(plan, chunk, request.most, branches, budget)
            else:
                plan.chunks.append(chunk)

    def skips(self) -> bool:
        """Whether the coming step goes without drafts, whatever tokens the turns have by then; if so it is counted as
        one that went."""
        return self._drafter is None or self._drafter.skips()

    def accept(self, chunks: list[Chunk], accepted: Chunk) -> bool:
        """Of ``chunks``, those of one turn in a step, go on with ``accepted``: the turn's tokens but the last one were
        computed there. Returns whether the turn has other blocks now.

        Rejected drafts leave nothing: their KV is behind what is computed, or in blocks that are given back.
        """
        sequence = accepted.sequence
        held = sequence.held
        assert held is not None
        for chunk in chunks:
            if chunk.blocks and chunk is not accepted:
                self._cache.drop_branch(chunk.blocks)
        if accepted.blocks:
            self._cache.adopt_branch(held, accepted.start, accepted.blocks)
        sequence.num_computed = sequence.num_tokens - 1
        return self._cache.shrink(held, sequence.num_tokens) or bool(accepted.blocks)

    def _add_chunks(self, plan: StepPlan, chunk: Chunk, most: int, branches: Branches, budget: int) -> int:
        """Returns how many tokens more than ``chunk`` these are."""
        drafts = self._fit(chunk.sequence, branches[0][: min(most, max(0, budget))])
        plan.chunks.append(_with_drafts(chunk, drafts))
        used = len(drafts)
        for other in branches[1:]:
            branch = self._branch(plan, chunk, other[: min(most, max(0, budget - used - chunk.num_tokens))])
            if branch is not None:
                plan.chunks.append(branch)
                used += branch.num_tokens
        return used

    def _fit(self, sequence: Sequence, drafts: tuple[int, ...]) -> tuple[int, ...]:
        """Reserve the blocks of ``drafts`` too; where the pool cannot give them, only those that fit are returned."""
        held = sequence.held
        assert held is not None
        if self._cache.grow(held, sequence.num_tokens + len(drafts)):
            return drafts
        return drafts[: len(held.block_ids) * self._cache.block_size - sequence.num_tokens]

    def _branch(self, plan: StepPlan, chunk: Chunk, drafts: tuple[int, ...]) -> Chunk | None:
        held = chunk.sequence.held
        assert held is not None
        if not drafts:
            return None
        found = self._cache.branch(held, chunk.start, chunk.sequence.num_tokens + len(drafts))
        if found is None:
            return None
        blocks, copy = found
        if copy is not None:
            plan.copies.append(copy)
        return _with_drafts(chunk, drafts)._replace(blocks=tuple(blocks))


def _with_drafts(chunk: Chunk, drafts: tuple[int, ...]) -> Chunk:
    return chunk._replace(num_tokens=chunk.num_tokens + len(drafts), drafts=drafts)
