"""Tokens to text as they come."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable

from .tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns a stream of tokens into text, a whole character at a time.

    The pieces that ``push`` and at last ``flush`` return make up ``Tokenizer.decode`` of all tokens, without special
    ones except those whose texts are ``shown_special``. A push costs time in its own tokens, whatever came before.
    """

    def __init__(self, tokenizer: Tokenizer, *, shown_special: Collection[str] = ()) -> None:
        self._bytes = tokenizer.token_bytes
        shown = {tokenizer.token_id(text) for text in shown_special}
        self._skipped = self._bytes.special_ids - shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drop_space = self._bytes.strips_first_space

    def push(self, token_ids: Iterable[int]) -> str:
        """The characters that these tokens complete."""
        pieces = b"".join(self._bytes[token_id] for token_id in token_ids if token_id not in self._skipped)
        if self._drop_space and pieces:
            self._drop_space = False
            pieces = pieces.removeprefix(b" ")
        return self._decoder.decode(pieces)

    def flush(self) -> str:
        """What is left of an unfinished character, as U+FFFD; the stream ends here."""
        return self._decoder.decode(b"", final=True)
