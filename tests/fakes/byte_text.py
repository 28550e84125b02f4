"""A real tokenizer with the smallest vocabulary: one token a byte, and ChatML's two special tokens."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from sessile.server.text.chat_template import CHATML, ChatTemplate, TemplateTokens
from sessile.server.text.tokenizer import SpecialTokens, Tokenizer

IM_START, IM_END = "<|im_start|>", "<|im_end|>"


def byte_tokenizer(*more_special: str) -> Tokenizer:
    """``more_special`` texts get tokens of their own; they make it another tokenizer, with another fingerprint."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([IM_START, IM_END, *more_special])
    end = backend.token_to_id(IM_END)
    return Tokenizer(backend, SpecialTokens(eos_token_ids=frozenset({end})))


def chatml_template(source: str = CHATML) -> ChatTemplate:
    return ChatTemplate(source, TemplateTokens(special_texts=(IM_START, IM_END), end_of_turn_texts=(IM_END,)))
