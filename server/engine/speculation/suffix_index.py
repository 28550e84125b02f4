"""Where in a text the tokens before its end, or before another text's end, occurred already.

A suffix automaton answers this too, with some hundred bytes a token in Python. Here it is three arrays:

    tokens    t0 t1 t2 t3 t4 ...
    earlier   for each place, the last place before it that follows the same two tokens (or the same hash of them)
    latest    for each hash of two tokens, the last place that follows them

So the places that follow the present two tokens are a chain, latest first, and comparing backwards from each says how
far they agree. Where texts repeat, the few latest places hold the longest agreement nearly always (measured:
``docs/speculation.md``), so the walk is short. A place enters the chain when the token at it is known; appending costs
the same however long the text is. At most 16 bytes a token, the text included.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BORDER = -1  # stands between texts; agrees with nothing
NOWHERE = -1
WALK = 8  # places that are compared
LONGEST = 32  # tokens that are compared
_LEAST_CAPACITY = 64
_BULK = 48  # from so many tokens on, appending by array operations is faster
_MIX_LEFT, _MIX_BOTH, _WORD = 40503, 2654435761, 0xFFFFFFFF


class Place(NamedTuple):
    """A place in a text: the ``length`` tokens before it are those before the end that was asked for."""

    length: int
    at: int  # index of the token that came next there


class SuffixIndex:
    """A text that grows at its end, and can be cut there."""

    def __init__(self, capacity: int = _LEAST_CAPACITY) -> None:
        self.num_tokens = 0
        self._allocate(max(capacity, _LEAST_CAPACITY))

    @property
    def num_bytes(self) -> int:
        """Of memory, allocated."""
        return self._tokens.nbytes + self._earlier.nbytes + self._latest.nbytes + self._latest_of_one.nbytes

    @property
    def view(self) -> memoryview:
        """The text as ``find`` takes it; it stands until the text grows beyond its capacity."""
        return self._token

    @property
    def token_ids(self) -> npt.NDArray[np.int32]:
        """The text, [num_tokens]; a view that stands until the text grows."""
        return self._tokens[: self.num_tokens]

    def extend(self, token_ids: npt.NDArray[np.int32]) -> None:
        """Append ``token_ids`` [n]; ids are 0 or more, or ``BORDER``."""
        start, stop = self.num_tokens, self.num_tokens + len(token_ids)
        if stop > len(self._tokens):
            self._grow(stop)
        self.num_tokens = stop
        if stop - start >= _BULK:
            self._tokens[start:stop] = token_ids
            self._link_many(start, stop)
        else:
            for at, token_id in enumerate(token_ids.tolist(), start):
                self._token[at] = token_id
                self._link(at)

    def cut(self, num_tokens: int) -> None:
        """Keep the first ``num_tokens``: what was appended last is taken back, one by one."""
        token, earlier, latest = self._token, self._earlier_of, self._latest_at
        for at in range(self.num_tokens - 1, max(num_tokens, 2) - 1, -1):
            latest[_slot(token[at - 2], token[at - 1], self._mask)] = earlier[at]
        self.num_tokens = num_tokens  # a place behind it, in the table of single tokens, is not taken for one

    def find(self, context: memoryview, end: int, longest: int = LONGEST) -> list[Place]:
        """The latest places that agree with at least the last two tokens of ``context[:end]`` (int32), latest first.
        Agreement is counted up to ``longest``."""
        if end < 2:
            return []
        token, earlier, left, right = self._token, self._earlier_of, context[end - 2], context[end - 1]
        at = self._latest_at[_slot(left, right, self._mask)]
        places: list[Place] = []
        for _ in range(WALK):
            if at < 2:
                break
            if token[at - 1] == right and token[at - 2] == left:
                length, most = 2, min(longest, at, end)
                while length < most and token[at - 1 - length] == context[end - 1 - length]:
                    length += 1
                places.append(Place(length, at))
                if length == longest:
                    break
            at = earlier[at]
        return places

    def find_one(self, token_id: int) -> int:
        """The last place that follows ``token_id``, or ``NOWHERE``."""
        at = self._latest_of_one_at[token_id & self._mask_of_one]
        return at if 0 < at < self.num_tokens and self._token[at - 1] == token_id else NOWHERE

    def following(self, at: int, count: int) -> list[int]:
        """Up to ``count`` tokens from ``at`` on, to the next border."""
        tokens: list[int] = self._token[at : min(at + count, self.num_tokens)].tolist()
        return tokens[: tokens.index(BORDER)] if BORDER in tokens else tokens

    def token(self, at: int) -> int:
        """The token at ``at``."""
        found: int = self._token[at]
        return found

    def _link(self, at: int) -> None:
        if at >= 2:
            slot = _slot(self._token[at - 2], self._token[at - 1], self._mask)
            self._earlier_of[at] = self._latest_at[slot]
            self._latest_at[slot] = at
        if at >= 1:
            self._latest_of_one_at[self._token[at - 1] & self._mask_of_one] = at

    def _link_many(self, start: int, stop: int) -> None:
        """As ``_link`` for each place in order: among places of one slot, each one's earlier is the one before it."""
        places = np.arange(max(start, 2), stop, dtype=np.int32)
        left, right = self._tokens[places - 2].astype(np.int64), self._tokens[places - 1].astype(np.int64)
        slots = _slots(left, right, self._mask)
        order = np.argsort(slots, kind="stable")
        grouped, at = slots[order], places[order]
        first = np.ones(len(at), dtype=bool)
        first[1:] = grouped[1:] != grouped[:-1]
        before = np.empty_like(at)
        before[1:] = at[:-1]
        before[first] = self._latest[grouped[first]]
        self._earlier[at] = before
        last = np.ones(len(at), dtype=bool)
        last[:-1] = first[1:]
        self._latest[grouped[last]] = at[last]
        self._latest_of_one[right & self._mask_of_one] = places  # of equal slots the last one stays

    def _grow(self, wanted: int) -> None:
        tokens = self.token_ids
        self._allocate(max(wanted, len(tokens) + len(tokens) // 4))
        self._tokens[: len(tokens)] = tokens
        self._link_many(0, len(tokens))

    def _allocate(self, capacity: int) -> None:
        slots = max(64, 1 << (capacity // 2 - 1).bit_length())
        self._tokens: npt.NDArray[np.int32] = np.empty(capacity, dtype=np.int32)
        self._earlier: npt.NDArray[np.int32] = np.full(capacity, NOWHERE, dtype=np.int32)
        self._latest: npt.NDArray[np.int32] = np.full(slots, NOWHERE, dtype=np.int32)
        self._latest_of_one: npt.NDArray[np.int32] = np.full(slots // 4, NOWHERE, dtype=np.int32)
        # views for single elements: several times faster than indexing an array
        self._token, self._earlier_of = self._tokens.data, self._earlier.data
        self._latest_at, self._latest_of_one_at = self._latest.data, self._latest_of_one.data
        self._mask, self._mask_of_one = slots - 1, slots // 4 - 1


def _slot(left: int, right: int, mask: int) -> int:
    return (((left * _MIX_LEFT + right) & _WORD) * _MIX_BOTH >> 15) & mask


def _slots(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64], mask: int) -> npt.NDArray[np.int64]:
    mixed = ((left * _MIX_LEFT + right) & _WORD).astype(np.uint64) * np.uint64(_MIX_BOTH)
    return ((mixed >> np.uint64(15)) & np.uint64(mask)).astype(np.int64)
