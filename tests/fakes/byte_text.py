"""A real tokenizer with the smallest vocabulary: one token a byte, and ChatML's two special tokens."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from sessile.server.text.chat_template import CHATML, ChatTemplate, TemplateTokens
from sessile.server.text.tokenizer import SpecialTokens, Tokenizer

IM_START, IM_END = "<|im_start|>", "<|im_end|>"


def byte_tokenizer(*more_special: str) -> Tokenizer:
    """``more_special`` texts get tokens of their own; they make it another tokenizer, with another fingerprint."""
    backend = _backend(*more_special)
    end = backend.token_to_id(IM_END)
    return Tokenizer(backend, SpecialTokens(eos_token_ids=frozenset({end})))


def write_byte_tokenizer(folder: Path) -> None:
    """The tokenizer as the files of a model's folder."""
    _backend().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": IM_END, "chat_template": CHATML}))


def _backend(*more_special: str) -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([IM_START, IM_END, *more_special])
    return backend


def chatml_template(source: str = CHATML) -> ChatTemplate:
    return ChatTemplate(source, TemplateTokens(special_texts=(IM_START, IM_END), end_of_turn_texts=(IM_END,)))
