"""The indexed texts of running turns, and those of turns that ended, for the conversation's next turn."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from ..sequence import Sequence
from .suffix_index import SuffixIndex

_KEY_TOKENS = 32
_MOST_TO_CUT = 256  # a text whose end is another one is cut there; further back indexing it anew is as cheap
_SPARE_TOKENS = 64
_TOKENS_A_STEP = 4096  # some hundred microseconds

_Key = tuple[str, bytes]


class SessionTexts:
    """Alone owns these texts. A text is indexed once in the life of a conversation: its next turn goes on with it.

    ``most_bytes`` bounds what is kept of turns that ended; the longest unused goes first.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._running: dict[Sequence, SuffixIndex] = {}
        self._kept: OrderedDict[_Key, list[SuffixIndex]] = OrderedDict()
        self._kept_bytes = 0
        self._room = _TOKENS_A_STEP

    @property
    def num_tokens(self) -> int:
        return sum(text.num_tokens for text in self._all())

    @property
    def num_bytes(self) -> int:
        return self._kept_bytes + sum(text.num_bytes for text in self._running.values())

    def begin_step(self) -> None:
        """A step begins: so and so many tokens are indexed in it at most, that it need not wait for long."""
        self._room = _TOKENS_A_STEP

    def text_of(self, sequence: Sequence) -> SuffixIndex | None:
        """The text of ``sequence`` so far; None while it is not indexed to its end."""
        text = self._running.get(sequence)
        if text is None:
            text = self._running[sequence] = self._begin(sequence)
        missing = sequence.num_tokens - text.num_tokens
        if missing:
            count = min(missing, self._room)
            text.extend(sequence.token_ids[text.num_tokens : text.num_tokens + count])
            self._room -= count
        return text if text.num_tokens == sequence.num_tokens else None

    def ended(self, sequence: Sequence) -> None:
        """Keep the text of ``sequence`` for a turn that begins with it."""
        text = self._running.pop(sequence, None)
        if text is None:
            return
        self._kept.setdefault(_key(sequence), []).append(text)
        self._kept.move_to_end(_key(sequence))
        self._kept_bytes += text.num_bytes
        while self._kept_bytes > self._most_bytes:
            _, texts = self._kept.popitem(last=False)
            self._kept_bytes -= sum(text.num_bytes for text in texts)

    def _all(self) -> list[SuffixIndex]:
        return [*self._running.values(), *(text for texts in self._kept.values() for text in texts)]

    def _begin(self, sequence: Sequence) -> SuffixIndex:
        tokens = sequence.token_ids
        texts = self._kept.get(_key(sequence), [])
        best, agreed = None, 0
        for text in texts:
            length = _common(text.token_ids, tokens)
            if length > agreed and text.num_tokens - length <= _MOST_TO_CUT:
                best, agreed = text, length
        if best is None:
            return SuffixIndex(len(tokens) + _SPARE_TOKENS)
        texts.remove(best)
        self._kept_bytes -= best.num_bytes
        best.cut(agreed)
        return best


def _key(sequence: Sequence) -> _Key:
    return sequence.turn.cache_salt, sequence.token_ids[:_KEY_TOKENS].tobytes()


def _common(left: npt.NDArray[np.int32], right: npt.NDArray[np.int32]) -> int:
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(differs.argmax()) if differs.any() else length
