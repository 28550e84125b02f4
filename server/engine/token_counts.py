"""Which tokens a turn has, for the penalties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class TokenCounts:
    """The different tokens of a turn, and how often its answer has each; kept as tokens come."""

    def __init__(self, prompt: npt.NDArray[np.int32]) -> None:
        different = np.unique(prompt)
        self._size = len(different)
        self._ids: npt.NDArray[np.int64] = different.astype(np.int64)
        self._counts: npt.NDArray[np.int32] = np.zeros(self._size, dtype=np.int32)
        self._places = {token_id: place for place, token_id in enumerate(different.tolist())}

    def add(self, token_id: int) -> None:
        """The answer got a token."""
        place = self._places.setdefault(token_id, self._size)
        if place == self._size:
            if self._size == len(self._ids):
                self._grow()
            self._ids[place], self._counts[place] = token_id, 0
            self._size += 1
        self._counts[place] += 1

    def behind(self, drafts: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Ids of the different tokens of the turn and of ``drafts``, and how often answer and drafts have each."""
        ids, counts = self._ids[: self._size], self._counts[: self._size]
        if not drafts:
            return ids, counts
        counts = counts.copy()
        new: dict[int, int] = {}
        for token_id in drafts:
            place = self._places.get(token_id)
            if place is None:
                new[token_id] = new.get(token_id, 0) + 1
            else:
                counts[place] += 1
        more_ids, more_counts = np.array(list(new), dtype=np.int64), np.array(list(new.values()), dtype=np.int32)
        return np.concatenate([ids, more_ids]), np.concatenate([counts, more_counts])

    def _grow(self) -> None:
        room = max(64, self._size)
        self._ids = np.concatenate([self._ids, np.zeros(room, dtype=np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(room, dtype=np.int32)])
