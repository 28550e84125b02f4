"""When a step can be planned before the tokens of the one before it are known.

A GPU computes a step by itself, and the host would only wait for it. So the step after is planned and launched
meanwhile, each of its tokens being "what that row of the present step samples", which the GPU takes over. This holds
for one step ahead, and only where the tokens change nothing about the plan:

- every turn that runs decodes, with one token that the GPU can draw by itself: no drafts, and nothing that changes
  the logits by what was said before (penalties, grammars, ``min_tokens``) or asks for log probabilities;
- no turn loads, none that waits could start or take a running one's place, and the pool has the blocks.

A turn that may end by its length is left out; one that ends by a stop token, which nobody could know, has a row in
the step after that is computed for nothing and thrown away. It writes behind what the turn computed, to a block that
was the turn's: whatever is launched later, and so whoever gets the block next, comes after it in the stream.
"""

from __future__ import annotations

from collections.abc import Collection

from ..sequence import Sequence
from .plan import Chunk, StepPlan


def decodes_alone(present: StepPlan, running: Collection[Sequence]) -> bool:
    """Whether all that is ``running`` gets one token from ``present``, by a draw that the host need not see."""
    return (
        len(present.chunks) == len(running)
        and all(_is_plain(chunk) for chunk in present.chunks)
        and {chunk.sequence for chunk in present.chunks} == set(running)
    )


def next_decodes(present: StepPlan) -> list[Chunk]:
    """The decodes that follow ``present``, of the turns that may say more than the token it gives them."""
    going_on = (chunk.sequence for chunk in present.chunks if chunk.sequence.num_tokens_left > 1)
    return [Chunk(sequence, sequence.num_tokens, 1, awaits_token=True) for sequence in going_on]


def _is_plain(chunk: Chunk) -> bool:
    return chunk.reaches_end and not chunk.drafts and not chunk.blocks and not chunk.sequence.adjusts_logits
