"""The bytes that each token stands for: what decoding is, for the two kinds of vocabularies in use."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import tokenizers

from ...sessions.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_METASPACE = "▁"


class VocabularyKind(enum.Enum):
    """How a token's text in the vocabulary stands for bytes."""

    BYTE_LEVEL = "byte level"  # each character is one byte, by GPT-2's table
    SENTENCEPIECE = "sentencepiece"  # U+2581 is a space, <0x0A> is a byte


@cache
def _byte_of_character() -> Mapping[str, int]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the others for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


def vocabulary_kind(decoder: Mapping[str, Any] | None) -> VocabularyKind:
    """The kind that belongs to the ``decoder`` part of a tokenizer.json.

    Raises:
        ModelError: a decoder of another kind (WordPiece, CTC, …).
    """
    names = _decoder_names(decoder or {})
    if "ByteLevel" in names:
        return VocabularyKind.BYTE_LEVEL
    if names & {"ByteFallback", "Metaspace"}:
        return VocabularyKind.SENTENCEPIECE
    raise ModelError(
        f"the tokenizer's decoder {sorted(names) or None} is not known",
        field="decoder",
        remedy="byte-level and SentencePiece tokenizers can be used",
    )


def _decoder_names(decoder: Mapping[str, Any]) -> set[str]:
    names = {str(decoder.get("type", ""))} - {"", "Sequence"}
    for part in decoder.get("decoders", ()):
        names |= _decoder_names(part)
    return names


class TokenBytes:
    """Bytes by token id; each is worked out once, when it is first asked for."""

    def __init__(self, backend: tokenizers.Tokenizer, kind: VocabularyKind) -> None:
        self._backend = backend
        self.kind = kind
        self.strips_first_space = kind is VocabularyKind.SENTENCEPIECE and _strips_first_space(backend)
        added = backend.get_added_tokens_decoder()
        self._added = {token_id: token.content.encode() for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._known: dict[int, bytes] = dict(self._added)

    def __getitem__(self, token_id: int) -> bytes:
        """The bytes of a token; none for an id beyond the vocabulary (models pad theirs)."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._work_out(token_id)
        return known

    def _work_out(self, token_id: int) -> bytes:
        text = self._backend.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None
        if text is None:
            return b""
        if self.kind is VocabularyKind.BYTE_LEVEL:
            table = _byte_of_character()
            values = [table.get(character) for character in text]
            return text.encode() if None in values else bytes(value for value in values if value is not None)
        byte = _BYTE_TOKEN.fullmatch(text)
        return bytes([int(byte[1], 16)]) if byte else text.replace(_METASPACE, " ").encode()


def _strips_first_space(backend: tokenizers.Tokenizer) -> bool:
    """Whether decoding drops the space that encoding put before the text."""
    decoder = backend.decoder
    parsed = json.loads(decoder.__getstate__()) if decoder is not None else {}
    parts = parsed.get("decoders", [parsed])
    return any(
        (part.get("type") == "Strip" and part.get("start", 0) > 0)
        or (part.get("type") == "Metaspace" and part.get("prepend_scheme", "always") != "never")
        for part in parts
    )
