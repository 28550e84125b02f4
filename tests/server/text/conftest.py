"""Tokenizers made on the spot: byte level with ChatML's tokens, and SentencePiece from GGUF metadata."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from sessile.server.text.gguf_tokenizer import tokenizer_from_gguf
from sessile.server.text.tokenizer import SpecialTokens, Tokenizer

TRAINING_TEXT = ["the quick brown fox jumps over the lazy dog", "assistant user system tool", "héllo wörld — 你好 🙂"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """Byte-level BPE. ``<think>`` is added without being special, as Qwen has it."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TRAINING_TEXT * 3, trainer)
    backend.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    eos = {backend.token_to_id("<|im_end|>"), backend.token_to_id("<|endoftext|>")}
    return Tokenizer(backend, SpecialTokens(frozenset(eos), backend.token_to_id("<|im_start|>"), names))


@pytest.fixture(scope="session")
def sentencepiece_metadata() -> dict[str, Any]:
    """A small SentencePiece BPE vocabulary as GGUF files hold it."""
    words = ["▁the", "▁quick", "▁f", "ox", "▁fox", "qu", "ick", "th", "he", "the", "▁t", "▁th", "▁q", "▁qu", "ck", "ic"]
    characters = sorted({*"▁abcdefghijklmnopqrstuvwxyzABC.,!?[]INST/é"})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *characters]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(words) + len(characters))
    scores = [0.0] * 259 + [-float(index) for index in range(len(words))] + [-100.0 - i for i in range(len(characters))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_metadata: dict[str, Any]) -> Tokenizer:
    backend, special, _ = tokenizer_from_gguf(sentencepiece_metadata)
    return Tokenizer(backend, special)
