"""The blocks of a turn: what of its prefix is cached where, taking blocks when it starts and giving them back."""

from __future__ import annotations

import dataclasses

from ....sessions.cache.lifetime import Lifetime
from ....sessions.cache.prefix_cache import BlockCopy, PrefixCache, SequenceBlocks
from ....sessions.cache.radix_node import Match
from ..block_loads import NOTHING_TO_LOAD, BlockLoad, LoadDecision
from ..kv_transfer import KVTransfer
from ..prompt_accounts import PromptAccounts, planned_tokens
from ..sequence import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """What is to be done before a turn that got its blocks can run."""

    copy: BlockCopy | None
    load: BlockLoad | None


class TurnBlocks:
    """Between the scheduler and the cache. ``transfer`` None: there are no tiers below the device's."""

    def __init__(self, cache: PrefixCache, accounts: PromptAccounts, transfer: KVTransfer | None) -> None:
        self._cache = cache
        self._accounts = accounts
        self._transfer = transfer
        self.block_size = cache.block_size

    def look_up(self, sequence: Sequence) -> int:
        """Name the blocks of a turn that is about to wait (``sequence.content_keys``) and return how many of its tokens
        are cached on the device."""
        key = sequence.packed(0, sequence.num_tokens - 1)  # the last token is computed always: its logits are needed
        match = self._cache.match(sequence.turn.cache_salt, key)
        sequence.content_keys = match.content_keys + self._cache.content_keys_after(match, key)
        return match.num_tokens

    def num_in_lower_tiers(self, sequence: Sequence, num_cached: int) -> int:
        """How many tokens after the first ``num_cached`` the local tiers below the device's have."""
        if self._transfer is None:
            return 0
        found = self._transfer.tiers.sources(sequence.content_keys[num_cached // self.block_size :])
        blocks = sum(source.num_blocks for source in found)
        return max(0, (num_cached // self.block_size + blocks) * self.block_size - num_cached) if blocks else 0

    def num_cached_blocks(self, sequence: Sequence) -> int:
        """Whole blocks of a waiting turn that are on the device now."""
        key = sequence.packed(0, sequence.num_tokens - 1)
        return len(self._cache.match(sequence.turn.cache_salt, key).blocks)

    def make_way(self) -> bool:
        """Nothing else runs, and a turn finds no room: let a hard pin go. False: there is none."""
        return self._cache.make_way()

    def take(self, sequence: Sequence, spare_blocks: int) -> Taken | None:
        """Give a turn the cached blocks of its prefix and new ones for the rest of its tokens; None, and nothing is
        taken, if fewer than ``spare_blocks`` would be left. Sets ``held`` and ``num_computed``."""
        match = self._cache.match(sequence.turn.cache_salt, sequence.packed(0, sequence.num_tokens - 1))
        wanted = sequence.content_keys[len(match.blocks) :]
        decision = self._plan_load(sequence, match)
        used = match.whole_blocks() if decision.num_blocks else match  # the rest of its block is loaded with the others
        turn = sequence.turn
        admitted = self._cache.admit(used, sequence.num_tokens, spare_blocks, turn.owner, turn.lifetime)
        if admitted is None:
            return None
        if self._transfer is not None and sequence.tokens_by_source is None:
            self._transfer.decided(decision)
        sequence.held, copy = admitted
        self._expect(sequence, match, wanted, decision)
        sequence.num_computed = sequence.held.num_matched_tokens
        if not decision.num_blocks or self._transfer is None:
            return Taken(copy, None)
        return Taken(copy, self._transfer.load_of(sequence, decision, wanted, len(match.blocks)))

    def take_ahead(self, sequence: Sequence, spare_blocks: int) -> BlockLoad | None:
        """Give a sequence the blocks for what the lower tiers have of it, and no others; None, and nothing is taken, if
        they have nothing worth while, or fewer than ``spare_blocks`` would be left."""
        self.look_up(sequence)
        match = self._cache.match(sequence.turn.cache_salt, sequence.packed(0, sequence.num_tokens - 1))
        first = len(match.blocks)
        decision = self._plan_load(sequence, match)
        if not decision.num_blocks or self._transfer is None:
            return None
        stop = (first + decision.num_blocks) * self.block_size
        turn = sequence.turn
        admitted = self._cache.admit(match.whole_blocks(), stop, spare_blocks, turn.owner, turn.lifetime)
        if admitted is None:
            return None
        self._transfer.decided(decision)
        sequence.held, _ = admitted
        sequence.num_computed = sequence.held.num_matched_tokens
        wanted, sequence.content_keys = sequence.content_keys[first:], sequence.content_keys[: stop // self.block_size]
        return self._transfer.load_of(sequence, decision, wanted, first)

    def plan(self, sequence: Sequence) -> tuple[Match, LoadDecision]:
        """What of a sequence's prefix is cached on the device, and what of the rest is worth a load."""
        self.look_up(sequence)
        match = self._cache.match(sequence.turn.cache_salt, sequence.packed(0, sequence.num_tokens - 1))
        return match, self._plan_load(sequence, match)

    def leave_behind(self, sequence: Sequence, load: BlockLoad) -> bool:
        """Nobody waits for ``load`` any more: go on with other blocks. False: there are none."""
        held = sequence.held
        assert held is not None
        self._cache.leave_behind(held, load.first_block, len(load.block_ids))
        return self._cache.grow(held, sequence.num_tokens)

    def take_back(self, load: BlockLoad) -> None:
        """A load that was left behind has ended."""
        self._cache.take_back(load.block_ids)

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Reserve blocks so that ``num_tokens`` tokens fit; False if the pool cannot give them."""
        assert sequence.held is not None
        return self._cache.grow(sequence.held, num_tokens)

    def commit(self, sequence: Sequence) -> list[int]:
        """Let others find the blocks that became full; returns which of the turn's blocks are others now."""
        held = sequence.held
        assert held is not None
        if sequence.num_computed - held.num_cached_tokens < self.block_size:
            return []
        return self._cache.commit(
            held, sequence.packed(held.num_cached_tokens, sequence.num_computed), sequence.num_computed
        )

    def give_back(self, sequence: Sequence) -> None:
        """End a turn's hold. What it computed stays cached, and is persisted unless the turn forbids it."""
        held = sequence.held
        assert held is not None
        self.commit(sequence)
        self._accounts.computed(sequence)
        turn = sequence.turn
        if self._transfer is not None and turn.persist and turn.lifetime is Lifetime.DURABLE:
            salt = sequence.turn.cache_salt
            self._transfer.persist(held.content_keys, held.block_ids, held.num_durable_blocks, salt)
            self._persist_tail(sequence, held, self._transfer)
        self._cache.release(held, sequence.packed(held.num_cached_tokens, sequence.num_computed), sequence.num_computed)
        sequence.held = None

    def _persist_tail(self, sequence: Sequence, held: SequenceBlocks, transfer: KVTransfer) -> None:
        whole = len(held.content_keys)
        tail = sequence.packed(whole * self.block_size, sequence.num_computed)
        if tail:
            salt = sequence.turn.cache_salt
            transfer.persist_tail(self._cache.tail_key(held, tail), held.block_ids[whole], salt)

    def _plan_load(self, sequence: Sequence, match: Match) -> LoadDecision:
        """What to load of the blocks after the whole ones of ``match``, the half-full one at the end of what is cached
        included."""
        if self._transfer is None:
            return NOTHING_TO_LOAD
        wanted = sequence.content_keys[len(match.blocks) :]
        decision = self._transfer.plan(len(match.blocks), wanted, sequence.num_tokens)
        if decision.leave or decision.asks_shared:
            return decision
        whole = len(match.blocks) + decision.num_blocks
        parent = sequence.content_keys[whole - 1] if whole else None
        start, end = whole * self.block_size, sequence.num_tokens - 1
        rest = sequence.packed(start, min(start + self.block_size, end))
        on_device = 0 if decision.load else match.partial_tokens
        candidates = self._cache.tail_keys(sequence.turn.cache_salt, parent, rest)
        return self._transfer.with_tail(decision, [each for each in candidates if each.num_tokens > on_device])

    def _expect(self, sequence: Sequence, match: Match, wanted: list[bytes], decision: LoadDecision) -> None:
        """Tell the accounts what is known of a turn's prompt."""

        def found() -> int:
            there = self._transfer.tiers.sources(wanted) if self._transfer is not None else []
            return max(planned_tokens(match, there, self.block_size), planned)

        planned = planned_tokens(match, decision.load, self.block_size)
        if decision.tail is not None:
            planned = (len(match.blocks) + decision.num_blocks - 1) * self.block_size + decision.tail.num_tokens
        self._accounts.expect(sequence, match, found, planned)
