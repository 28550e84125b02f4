"""What grammars need of a tokenizer: the bytes of every token, and which ones are special or end a turn."""

from __future__ import annotations

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
