"""A tiny random model with a long context and a tokenizer that knows the words of given texts."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from byte_text import IM_END, IM_START
from tiny_llama import Shape, make_tiny_llama
from tokenizers import decoders, models, pre_tokenizers, trainers

VOCAB = 4096
START = "<s>"  # token 1
CONTEXT = 1 << 15


def make_case_model(folder: Path, texts: list[str], chat_template: str) -> Path:
    """The model's folder, as the server loads it."""
    make_tiny_llama(folder, Shape(layers=1), vocab_size=VOCAB, max_position=CONTEXT)
    tokenizer = trained_on(texts)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": IM_END, "bos_token": START, "chat_template": chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def trained_on(texts: list[str]) -> tokenizers.Tokenizer:
    """Byte-level BPE, the same for the same texts."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCAB,
            special_tokens=["<pad>", START, IM_START, IM_END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return made


def unnatural_token(tokenizer: tokenizers.Tokenizer, times: int) -> int:
    """A token of one letter that, said so many times, is not how the tokenizer writes that text."""
    for letter in "etaonisrhld":
        token = tokenizer.token_to_id(letter)
        if tokenizer.encode(letter * times, add_special_tokens=False).ids != [token] * times:
            return int(token)
    raise AssertionError("every letter stays alone")
