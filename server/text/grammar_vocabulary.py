"""What llguidance needs of a tokenizer: the bytes of every token, and which ones are special or end a turn."""

from __future__ import annotations

from collections.abc import Callable

import llguidance
import msgspec

from .tokenizer import Tokenizer


class GrammarVocabulary(msgspec.Struct, frozen=True):
    """``tokens``: bytes by id, as many as the model has logits; ids that stand for nothing are empty and never fit."""

    tokens: list[bytes]
    eos_token_ids: list[int]
    special_token_ids: list[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, size: int) -> GrammarVocabulary:
        """Of a model with ``size`` logits."""
        known = min(size, tokenizer.vocab_size)
        tokens = [tokenizer.token_bytes[token_id] for token_id in range(known)] + [b""] * (size - known)
        eos = [token_id for token_id in sorted(tokenizer.eos_token_ids) if token_id < size]
        special = {token_id for token_id in tokenizer.token_bytes.special_ids if token_id < size} | set(eos)
        return cls(tokens, eos, sorted(special))


class _Wrapped:
    """The attributes that llguidance reads of a tokenizer."""

    def __init__(self, vocabulary: GrammarVocabulary, encode: Callable[[str], list[int]]) -> None:
        self.tokens = vocabulary.tokens
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.bos_token_id: int | None = None
        self.special_token_ids = vocabulary.special_token_ids
        self._encode = encode

    def __call__(self, text: bytes) -> list[int]:
        return self._encode(text.decode())


def guidance_tokenizer(vocabulary: GrammarVocabulary, encode: Callable[[str], list[int]]) -> llguidance.LLTokenizer:
    """llguidance's tokenizer; it takes a quarter of a second. ``encode`` says which tokens forced text becomes."""
    wrapper = llguidance.TokenizerWrapper(_Wrapped(vocabulary, encode))
    return llguidance.LLTokenizer(wrapper, eos_token=vocabulary.eos_token_ids)
