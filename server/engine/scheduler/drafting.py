"""Puts drafts behind the decodes of a step, as far as tokens and blocks are left over for them."""

from __future__ import annotations

import dataclasses

from ..speculation.drafter import Drafter, DraftRequest
from .plan import Chunk, StepPlan
from .turn_blocks import TurnBlocks


def add_drafts(plan: StepPlan, drafter: Drafter, blocks: TurnBlocks, max_tokens: int) -> None:
    """Change the chunks of ``plan``, decodes alone, which may have ``max_tokens`` together."""
    if not plan.chunks:
        return
    budget = max_tokens - plan.num_tokens
    requests = [DraftRequest(chunk.sequence, _most(chunk)) for chunk in plan.chunks]
    for index, drafts in enumerate(drafter.draft(requests, budget)):
        chunk = plan.chunks[index]
        drafts = blocks.fit(chunk.sequence, drafts[: min(max(0, budget), requests[index].most)])
        if drafts:
            plan.chunks[index] = dataclasses.replace(chunk, num_tokens=chunk.num_tokens + len(drafts), drafts=drafts)
            budget -= len(drafts)


def _most(chunk: Chunk) -> int:
    return max(0, chunk.sequence.num_tokens_left - 1) if chunk.reaches_end else 0
