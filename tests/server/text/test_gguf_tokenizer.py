"""Tokenizers from GGUF metadata."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessile.server.text.gguf_tokenizer import tokenizer_from_gguf
from sessile.server.text.tokenizer import Tokenizer
from sessile.sessions.errors import ModelError

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy

PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = [chr(byte) for byte in PRINTABLE] + [chr(0x100 + index) for index in range(256 - len(PRINTABLE))]
SPACE = chr(0x100 + 32)


def byte_level_metadata(pre: str, words: list[str], merges: list[str]) -> dict[str, Any]:
    tokens = [*BYTES, *words, "<|im_end|>", "<tool>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([1] * (len(tokens) - 2) + [3, 4], np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
    }


def build(metadata: dict[str, Any]) -> Tokenizer:
    backend, special, _ = tokenizer_from_gguf(metadata)
    return Tokenizer(backend, special)


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in tokenizer.encode(text, allow_special=True)]


MERGES = ["1 2", "12 3", "123 4", "a b", f"{SPACE} a"]
WORDS = ["12", "123", "1234", "ab", f"{SPACE}a"]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["ab", "1", "2", "3", "4", " a", "<|im_end|>"]),
        ("qwen2", ["ab", "1", "2", "3", "4", " a", "<|im_end|>"]),
        ("llama-bpe", ["ab", "123", "4", " a", "<|im_end|>"]),
        ("default", ["ab", "1234", " a", "<|im_end|>"]),
        ("gpt-2", ["ab", "1234", " a", "<|im_end|>"]),
    ],
)
def test_pre_tokenisers_split_as_their_models_do(pre: str, expected: list[str]) -> None:
    assert pieces(build(byte_level_metadata(pre, WORDS, MERGES)), "ab1234 a<|im_end|>") == expected


def test_llama3_takes_whole_words_before_merging() -> None:
    metadata = byte_level_metadata("llama-bpe", ["ab", "bc", "abc"], ["a b"])
    assert pieces(build(metadata), "abc") == ["abc"]
    assert pieces(build({**metadata, "tokenizer.ggml.pre": "default"}), "abc") == ["ab", "c"]


def test_qwen2_composes_characters() -> None:
    assert pieces(build(byte_level_metadata("qwen2", [], [])), "e\u0301") == pieces(
        build(byte_level_metadata("qwen2", [], [])), "é"
    )


def test_control_tokens_are_special_and_user_defined_ones_are_not() -> None:
    tokenizer = build(byte_level_metadata("default", [], []))
    assert tokenizer.special_texts == ("<|im_end|>",)
    assert len(tokenizer.encode("<tool>", allow_special=False)) == 1
    assert len(tokenizer.encode("<|im_end|>", allow_special=False)) > 1
    assert tokenizer.eos_token_ids == {tokenizer.token_id("<|im_end|>")}


def merged_by_hand(text: str, score: dict[str, float]) -> list[str]:
    """SentencePiece's own algorithm: merge the neighbours whose union scores best, leftmost first."""
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        unions = [(-score[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in score]
        if not unions:
            return symbols
        _, place = min(unions)
        symbols[place : place + 2] = ["".join(symbols[place : place + 2])]


@RELAXED
@given(
    text=st.lists(st.sampled_from(["the", "quick", "fox", " ", "q", "u", "x", "th", "ick"]), min_size=1).map("".join)
)
def test_sentencepiece_merges_by_score(
    sentencepiece: Tokenizer, sentencepiece_metadata: dict[str, Any], text: str
) -> None:
    tokens, scores = (sentencepiece_metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores"))
    score = {token: float(value) for token, value in zip(tokens, scores, strict=True)}
    expected = [tokens.index(symbol) for symbol in merged_by_hand(text, score)]
    assert sentencepiece.encode(text, allow_special=False) == expected


def test_sentencepiece_falls_back_to_bytes(sentencepiece: Tokenizer) -> None:
    tokens = sentencepiece.encode("你", allow_special=False)
    assert sentencepiece.decode(tokens, skip_special=False) == "你"
    assert 0 not in tokens


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": "bert"}, "model"),
        ({"model": None}, "model"),
        ({"pre": "jais-2"}, "pre"),
        ({"tokens": []}, "tokens"),
        ({"tokens": None}, "tokens"),
        ({"token_type": np.zeros(3, np.int32)}, "token_type"),
        ({"merges": None}, "merges"),
        ({"merges": ["ab"]}, "merges"),
        ({"merges": ["x y"]}, "merges"),
        ({"eos_token_id": 10**6}, "eos_token_id"),
        ({"model": "llama"}, "scores"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, Any], field: str) -> None:
    changed = {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(ModelError) as caught:
        tokenizer_from_gguf({**byte_level_metadata("default", [], []), **changed})
    assert caught.value.field == f"tokenizer.ggml.{field}"
