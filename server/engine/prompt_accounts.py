"""The accounts of prompt tokens: where each came from, where it could have come from, and why it did not.

A prompt is counted once, at its turn's first admission. Preempted turns come back uncounted.

    |<------------------------ prompt ------------------------>|
    |<-------------- reusable -------------->|<----- new ----->|
    |<---- reused ---->|<----- missed ------>|
    |<---- reused ---->|<--------------- computed ------------>|

*Reusable* is what a cache without bounds would have hit: the longest beginning that this engine has ever computed under
the same salt, or that a tier holds, or that a session's log says was computed before this engine started.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items

from ...sessions.cache.cost_model import Source
from ...sessions.cache.radix_node import Match
from ...sessions.cache.recent_keys import RecentKeys
from ...sessions.cache.seen_prefixes import SeenPrefixes
from ...sessions.cache.tiers import Tier
from .messages import AdmittedTurn, MissedTokens, ReuseTotals, TokensBySource
from .sequence import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Expectation:
    """What was known of a prompt when it was admitted; each is a number of its leading tokens."""

    in_tree: int  # on the device, the matching tokens of a block that is copied included
    in_tiers: int  # in tiers of this machine, behind what is on the device
    planned: int  # to be loaded from these, or on the device
    seen: int  # computed by this engine before, under the same salt
    seen_by_others: int  # under any salt, in whole blocks
    logged: int  # in the session's log, whoever computed it
    has_expired: bool  # the session's KV was kept for a time, which is over

    @property
    def reusable(self) -> int:
        return max(self.in_tree, self.in_tiers, self.seen, self.logged)


class PromptAccounts:
    """Alone counts prompt tokens. ``expired_owners``: sessions for which something was kept until its time was over."""

    def __init__(self, seen: SeenPrefixes, expired_owners: RecentKeys | None = None) -> None:
        self._seen = seen
        self._expired_owners = expired_owners if expired_owners is not None else RecentKeys(0.0, 1, time.monotonic)
        self.by_source = TokensBySource()  # of all turns since the start
        self._reusable = 0
        self._missed = MissedTokens()
        self._other_salts = 0
        self._expected: dict[str, Expectation] = {}  # of turns that were admitted and not counted yet
        self._admitted: list[AdmittedTurn] = []

    def expect(
        self,
        sequence: Sequence,
        match: Match,
        found: Callable[[], int],
        planned: int,
    ) -> None:
        """Note what is known of a turn that is admitted now; only the first time counts.

        ``found``: asks the tiers of this machine how many leading tokens they and the device have. ``planned``: how
        many will be there when all loads succeed. It is asked only where something that could be reused is not.
        """
        if sequence.tokens_by_source is not None:
            return
        inputs = sequence.num_prompt_tokens - 1  # the last token is computed always
        seen = self._seen.longest(sequence.turn.cache_salt, sequence.token_ids[:inputs])
        logged = min(sequence.turn.logged_tokens, inputs)
        there = max(planned, match.num_tokens)
        in_tiers = found() if max(seen.own_salt, logged) > there else planned
        there = max(there, in_tiers)
        self._expected[sequence.turn_id] = Expectation(
            in_tree=match.num_tokens,
            in_tiers=in_tiers,
            planned=planned,
            seen=seen.own_salt,
            seen_by_others=seen.any_salt,
            logged=logged,
            has_expired=sequence.turn.owner.encode() in self._expired_owners,
        )

    def count(self, sequence: Sequence, num_matched: int, loaded: Mapping[Tier, int]) -> None:
        """Count the prompt of a turn that starts to compute. ``loaded``: tokens that came from each tier.

        Nothing happens the second time.
        """
        expected = self._expected.pop(sequence.turn_id, None)
        if expected is None:
            return
        sources = _by_source(sequence, num_matched, loaded)
        sequence.tokens_by_source = sources
        sequence.reusable_tokens = max(expected.reusable, sources.cached)
        sequence.missed = _missed(expected, sources.cached)
        self.by_source = self.by_source.plus(sources)
        self._reusable += sequence.reusable_tokens
        self._missed = self._missed.plus(sequence.missed)
        self._other_salts += max(0, expected.seen_by_others - sequence.reusable_tokens)
        self._expired_owners.forget(sequence.turn.owner.encode())
        self._admitted.append(
            AdmittedTurn(
                turn_id=sequence.turn_id,
                tokens_by_source=sources,
                reusable_tokens=sequence.reusable_tokens,
                missed=sequence.missed,
            )
        )

    def computed(self, sequence: Sequence) -> None:
        """Remember what a turn that gives its blocks back has computed."""
        self._expected.pop(sequence.turn_id, None)  # ended while it loaded: never counted
        self._seen.note(sequence.turn.cache_salt, sequence.token_ids[: sequence.num_computed])

    def take_admitted(self) -> list[AdmittedTurn]:
        """The turns that were counted since the last call."""
        admitted, self._admitted = self._admitted, []
        return admitted

    @property
    def reuse(self) -> ReuseTotals:
        """Of all turns since the start."""
        return ReuseTotals(
            reusable_tokens=self._reusable,
            missed=self._missed,
            other_salts=self._other_salts,
            index_blocks=self._seen.num_blocks,
            index_forgotten=self._seen.num_forgotten,
        )


def planned_tokens(match: Match, sources: Items[Source], block_size: int) -> int:
    """How many leading tokens will be there if all loads from this machine's tiers succeed; 0 when there is none.

    What is asked of the shared tier may turn out not to be there: it is no promise.
    """
    local = sum(source.num_blocks for source in sources if source.tier is not Tier.SHARED)
    return (len(match.blocks) + local) * block_size if local else 0


def _by_source(sequence: Sequence, num_matched: int, loaded: Mapping[Tier, int]) -> TokensBySource:
    device = min(num_matched, sequence.cached_on_arrival)
    return TokensBySource(
        device=device,
        in_flight=num_matched - device,
        host=loaded.get(Tier.HOST, 0),
        disk=loaded.get(Tier.DISK, 0),
        shared=loaded.get(Tier.SHARED, 0),
        computed=sequence.num_prompt_tokens - num_matched - sum(loaded.values()),
    )


def _missed(expected: Expectation, reused: int) -> MissedTokens:
    """Each token between ``reused`` and the end of what is reusable has one cause: the nearest place it was in."""
    end = reused
    parts: list[int] = []
    for place in (expected.planned, expected.in_tiers, expected.in_tree, expected.seen, expected.logged):
        parts.append(max(0, place - end))
        end = max(end, place)
    load_failed, cheaper_to_compute, no_room, gone, other_engine = parts
    return MissedTokens(
        load_failed=load_failed,
        cheaper_to_compute=cheaper_to_compute,
        no_room=no_room,
        expired=gone if expected.has_expired else 0,
        evicted=0 if expected.has_expired else gone,
        other_engine=other_engine,
    )
