"""Text to tokens and back, over a ``tokenizers`` backend."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

import blake3
import tokenizers

from ...sessions.errors import RequestError
from .prompt_text import Origin, PromptText
from .token_bytes import TokenBytes, VocabularyKind, vocabulary_kind


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The roles of special tokens. ``eos_token_ids``: every token that ends an assistant's turn.

    ``variables`` are the names that chat templates know: ``bos_token``, ``eos_token`` and so on.
    """

    eos_token_ids: frozenset[int]
    bos_token_id: int | None = None
    variables: dict[str, str] = field(default_factory=dict)


class Tokenizer:
    """Encodes and decodes; safe to call from several threads.

    A special token's name (``<|im_end|>``) becomes that token only in text that a template wrote. Elsewhere it is
    encoded like any other text, so that no message can end its own turn or open another's. Tokens that a tokenizer
    adds without calling them special (``<think>``, ``<tool_call>``) are vocabulary: they are encoded as tokens in
    any text.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special: SpecialTokens) -> None:
        backend.no_truncation()
        backend.no_padding()
        serialised = backend.to_str()
        kind = vocabulary_kind(_decoder(backend))
        self._backend = backend
        self._lock = threading.Lock()  # the backend's switch for special tokens is state
        self._bytes = TokenBytes(backend, kind)
        self.special = special
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self.special_texts = _special_texts(backend)
        self.fingerprint = _fingerprint(serialised, special)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every token that ends an assistant's turn."""
        return self.special.eos_token_ids

    @property
    def bos_token_id(self) -> int | None:
        return self.special.bos_token_id

    @property
    def token_bytes(self) -> TokenBytes:
        return self._bytes

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        """Tokens of ``text`` and nothing else: no token is put before or after it.

        Raises:
            RequestError: the text holds lone surrogates, which are no characters.
        """
        with self._lock:
            return self._encode(text, Origin.TEMPLATE if allow_special else Origin.LITERAL)

    def encode_inside(self, text: str) -> list[int]:
        """Tokens of plain text that follows other text: nothing is put before it.

        Raises:
            RequestError: the text holds lone surrogates, which are no characters.
        """
        with self._lock:
            return self._encode_inside(text, Origin.LITERAL)

    def encode_prompt(self, prompt: PromptText) -> list[int]:
        """Tokens of a rendered prompt, special tokens only where the template put them.

        Raises:
            RequestError: the text holds lone surrogates, which are no characters.
        """
        tokens: list[int] = []
        with self._lock:
            for index, part in enumerate(prompt.parts):
                if index or (prompt.already_logged and part.origin is Origin.LITERAL):
                    tokens += self._encode_inside(part.text, part.origin)
                else:
                    encoded = self._encode(prompt.already_logged + part.text, part.origin)
                    tokens += encoded[1:] if prompt.already_logged else encoded
        return tokens

    def encode_completion(self, text: str) -> list[int]:
        """Tokens of a plain completion's prompt, as the model's makers encode text: with its beginning-of-text token.

        Raises:
            RequestError: the text holds lone surrogates, which are no characters.
        """
        with self._lock:
            self._backend.encode_special_tokens = False
            try:
                return self._ids(text, add_special_tokens=True)
            except (UnicodeEncodeError, TypeError) as error:
                raise _not_text(error) from error

    def decode(self, token_ids: Iterable[int], *, skip_special: bool) -> str:
        """The text of all tokens; bytes that are no UTF-8 become U+FFFD."""
        skipped = self._bytes.special_ids if skip_special else frozenset()
        joined = b"".join(self._bytes[token_id] for token_id in token_ids if token_id not in skipped)
        if self._bytes.strips_first_space:
            joined = joined.removeprefix(b" ")
        return joined.decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        """One token as text, for logprobs; half a character shows as U+FFFD."""
        return self._bytes[token_id].decode("utf-8", "replace")

    def token_id(self, text: str) -> int | None:
        """The id of the token with exactly this text in the vocabulary."""
        found: int | None = self._backend.token_to_id(text)
        return found

    def _encode(self, text: str, origin: Origin) -> list[int]:
        self._backend.encode_special_tokens = origin is Origin.LITERAL
        try:
            return self._ids(text, add_special_tokens=False)
        except (UnicodeEncodeError, TypeError) as error:
            raise _not_text(error) from error

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """A batch of one: a text alone is encoded under the interpreter's lock, and every other thread stands still."""
        (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoded.ids)

    def _encode_inside(self, text: str, origin: Origin) -> list[int]:
        """Tokens of text that follows other text: without the space that SentencePiece puts before a text."""
        if self._bytes.kind is VocabularyKind.BYTE_LEVEL:
            return self._encode(text, origin)
        line_end = self._encode("\n", origin)
        encoded = self._encode("\n" + text, origin)
        if encoded[: len(line_end)] != line_end:  # the line end became part of a longer token
            return self._encode(text, origin)
        return encoded[len(line_end) :]


def _decoder(backend: tokenizers.Tokenizer) -> dict[str, object] | None:
    decoder = backend.decoder
    if decoder is None:
        return None
    parsed: dict[str, object] = json.loads(decoder.__getstate__())
    return parsed


def _special_texts(backend: tokenizers.Tokenizer) -> tuple[str, ...]:
    texts = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    return tuple(sorted(texts - {""}, key=lambda text: (-len(text), text)))


def _fingerprint(serialised: str, special: SpecialTokens) -> str:
    roles = json.dumps([sorted(special.eos_token_ids), special.bos_token_id])
    digest: str = blake3.blake3(f"{roles}\n{serialised}".encode()).hexdigest()
    return digest


def _not_text(error: Exception) -> RequestError:
    return RequestError(
        f"the text cannot be encoded: {error}", field="messages", remedy="send valid Unicode, without lone surrogates"
    )
