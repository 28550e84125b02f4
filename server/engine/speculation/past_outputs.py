"""What turns said before, by tenant and tool schema, within bounded memory."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from .output_log import OutputLog, Said
from .suffix_index import BORDER, SuffixIndex

_Key = tuple[str, str]
_SHARE_OF_ONE = 0.5  # of the bytes that one text may take
_MOST_BYTES_A_TOKEN = 16


class PastOutputs:
    """One indexed text for each tenant's cache salt and tool schema. Nobody is shown another tenant's words, not even
    by the time that a guess saves.

    A text that has its share of ``most_bytes`` loses its older half; when all together have too much, the one that was
    used least recently goes. ``log`` keeps them over restarts; None: nothing does.
    """

    def __init__(self, most_bytes: int, log: OutputLog | None = None) -> None:
        self._most_bytes = most_bytes
        self._log = log
        self._most_tokens = max(64, int(most_bytes * _SHARE_OF_ONE) // _MOST_BYTES_A_TOKEN)
        self._texts: OrderedDict[_Key, SuffixIndex] = OrderedDict()
        for said in [] if log is None else log.read():
            self._remember((said.salt, said.schema), said.token_ids)

    @property
    def num_bytes(self) -> int:
        return sum(text.num_bytes for text in self._texts.values())

    @property
    def num_tokens(self) -> int:
        return sum(text.num_tokens for text in self._texts.values())

    def of(self, salt: str, schema: str) -> SuffixIndex | None:
        """What was said, as one text with borders between turns."""
        return self._texts.get((salt, schema))

    @property
    def num_damaged_files(self) -> int:
        return 0 if self._log is None else self._log.num_damaged

    def add_for_now(self, salt: str, schema: str, token_ids: npt.NDArray[np.int32]) -> None:
        """Remember what a turn said that is to leave nothing behind: not over a restart."""
        self._remember((salt, schema), token_ids)

    def add(self, salt: str, schema: str, token_ids: npt.NDArray[np.int32]) -> None:
        """Remember what a turn said."""
        self._remember((salt, schema), token_ids)
        if self._log is not None:
            self._log.append(Said(salt, schema, token_ids.astype("<i4").tobytes()))
            if self._log.is_full:
                self._log.rewrite(self._all())

    def close(self) -> None:
        """Nothing else is called afterwards."""
        if self._log is not None:
            self._log.close()

    def _remember(self, key: _Key, token_ids: npt.NDArray[np.int32]) -> None:
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = SuffixIndex()
        if text.num_tokens + len(token_ids) + 1 > self._most_tokens:
            text = self._texts[key] = _newer_half(text)
        text.extend(np.append(token_ids[-self._most_tokens // 2 :], np.int32(BORDER)))
        self._texts.move_to_end(key)
        while len(self._texts) > 1 and self.num_bytes > self._most_bytes:
            self._texts.popitem(last=False)

    def _all(self) -> list[Said]:
        """All that is remembered, the least recently used first; a text of several turns as one."""
        return [
            Said(salt, schema, text.token_ids[:-1].astype("<i4").tobytes())
            for (salt, schema), text in self._texts.items()
        ]


def _newer_half(text: SuffixIndex) -> SuffixIndex:
    kept = SuffixIndex()
    kept.extend(text.token_ids[text.num_tokens // 2 :].copy())
    return kept
