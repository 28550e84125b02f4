"""A real byte-level BPE tokenizer of a few hundred tokens, trained on a little JSON when it is asked for."""

from __future__ import annotations

import json
from functools import cache

import tokenizers
from byte_text import IM_END, IM_START
from tokenizers import decoders, models, pre_tokenizers, trainers

from sessile.server.text.tokenizer import SpecialTokens, Tokenizer

_TEXT = [
    json.dumps(
        {
            "name": f"read_file_{i}",
            "arguments": {
                "path": f"/src/module_{i}/main.py",
                "line": i * 7,
                "recursive": i % 2 == 0,
                "unit": "celsius",
            },
            "items": [{"quantity": i + 0.5, "description": "the quick brown fox jumps over the lazy dog", "id": None}],
        }
    )
    for i in range(40)
]


@cache
def small_tokenizer() -> Tokenizer:
    """The same tokens each time; several ways to write most texts."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=[IM_START, IM_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_TEXT, trainer)
    return Tokenizer(backend, SpecialTokens(eos_token_ids=frozenset({backend.token_to_id(IM_END)})))
