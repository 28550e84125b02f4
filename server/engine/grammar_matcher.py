"""One turn's way through its grammar."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..text.schema_errors import readable

if TYPE_CHECKING:
    from llguidance import LLMatcher

Mask = npt.NDArray[np.int32]
"""[vocab_size / 32, rounded up]: bit ``i % 32`` of word ``i // 32`` says whether token ``i`` may follow."""


class GrammarMatcher:
    """Follows the tokens of a turn's answer; where it stands depends on these alone.

    Where the grammar leaves one way to go on, the tokens of that text are *forced*: they follow without being sampled.
    They are worked out once for a stretch of text, in the tokenizer's own way of cutting it.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._forced: deque[int] = deque()
        self._look_ahead()

    @property
    def ended(self) -> bool:
        """Nothing may follow but an end-of-turn token."""
        return not self._forced and self._matcher.is_stopped()

    @property
    def error(self) -> str:
        """Why the grammar cannot be followed further; empty: it can."""
        return readable(self._matcher.get_error()) if self._matcher.is_error() else ""

    @property
    def forced(self) -> int | None:
        """The token that must come next, whatever the model says."""
        return self._forced[0] if self._forced else None

    def copy(self) -> GrammarMatcher:
        """Another one at the same place; it takes a few microseconds."""
        twin = GrammarMatcher.__new__(GrammarMatcher)
        twin._matcher = self._matcher.deep_copy()
        twin._forced = self._forced.copy()
        return twin

    def accept(self, token_id: int) -> None:
        """Go on by a token that was allowed."""
        self._matcher.consume_token(token_id)
        if self._forced:
            self._forced.popleft()
        if not self._forced:
            self._look_ahead()

    def fill(self, mask: Mask) -> None:
        """Write which tokens may follow."""
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)

    def _look_ahead(self) -> None:
        if not self._matcher.is_stopped():
            self._forced.extend(self._matcher.compute_ff_tokens())


def walk(matcher: GrammarMatcher, drafts: Sequence[int], masks: Mask) -> list[int | None]:
    """What may follow at ``matcher`` and behind each of ``drafts``.

    Fills ``masks`` [1 + len(drafts), words] and returns the forced token of each row, None where there is none; masks
    of rows with a forced token stay as they are, and so do those behind a draft that is not allowed, or ends the
    answer: what is sampled there is never used. ``matcher`` stays where it is.
    """
    forced: list[int | None] = [None] * (1 + len(drafts))
    for row, draft in enumerate((*drafts, None)):
        forced[row] = matcher.forced
        if forced[row] is None:
            matcher.fill(masks[row])
        if draft is None or not _may_follow(draft, forced[row], masks[row]):
            break
        matcher = matcher.copy() if row == 0 else matcher
        matcher.accept(draft)
        if matcher.ended or matcher.error:
            break
    return forced


def _may_follow(token_id: int, forced: int | None, mask: Mask) -> bool:
    return token_id == forced if forced is not None else bool(mask[token_id >> 5] >> (token_id & 31) & 1)
