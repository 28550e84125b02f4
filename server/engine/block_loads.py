"""What is to be loaded for a turn, and what came of it."""

from __future__ import annotations

import dataclasses

from ...sessions.cache.cost_model import Source
from ...sessions.cache.tiers import Tier
from .sequence import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class TailSource:
    """The half-full block at a path's end is in ``tier``, with ``num_tokens`` tokens."""

    tier: Tier
    num_tokens: int
    content_key: bytes
    cached: float = 0.0  # as of ``Source``


@dataclasses.dataclass(frozen=True, slots=True)
class LoadDecision:
    """What of a path's blocks to ``load``, and what to ``leave`` where it is since computing is faster. Predicted
    seconds; what is only hoped for from the shared tier is not in them."""

    load: list[Source]
    leave: list[Source]
    load_s: float
    compute_s: float
    tail: TailSource | None = None  # behind the last block of ``load``

    @property
    def num_blocks(self) -> int:
        """Blocks to load, a half-full last one included."""
        return sum(source.num_blocks for source in self.load) + (self.tail is not None)

    def tokens(self, block_size: int) -> dict[Tier, int]:
        """What the load brings if all of it succeeds."""
        tokens: dict[Tier, int] = {}
        for source in self.load:
            tokens[source.tier] = tokens.get(source.tier, 0) + source.num_blocks * block_size
        if self.tail is not None:
            tokens[self.tail.tier] = tokens.get(self.tail.tier, 0) + self.tail.num_tokens
        return tokens

    @property
    def asks_shared(self) -> bool:
        return any(source.tier is Tier.SHARED for source in self.load)


NOTHING_TO_LOAD = LoadDecision([], [], 0.0, 0.0)


@dataclasses.dataclass(slots=True, eq=False)
class BlockLoad:
    """Fill ``block_ids`` with the blocks of ``content_keys``; ``sources`` says in which tiers they are, in order.

    What is expected of the shared tier may turn out not to be there. ``first_block``: how many blocks of the path are
    on the device already.
    """

    sequence: Sequence
    sources: list[Source]
    content_keys: list[bytes]
    block_ids: list[int]
    first_block: int
    deadline: float  # on the clock of time.monotonic
    num_tokens: int  # in all blocks; the last one may be half full
    tier_now: Tier | None = None  # from which the thread reads at this moment


@dataclasses.dataclass(frozen=True, slots=True)
class FinishedLoad:
    """What a load brought, a prefix of what was wanted: ``blocks``, ``tokens`` and ``seconds`` of each tier."""

    load: BlockLoad
    blocks: dict[Tier, int]
    tokens: dict[Tier, int]
    seconds: dict[Tier, float]
    cached_blocks: float = 0.0  # of those from the disk, what the system's page cache had of them

    @property
    def sequence(self) -> Sequence:
        return self.load.sequence

    @property
    def num_tokens(self) -> int:
        return sum(self.tokens.values())
