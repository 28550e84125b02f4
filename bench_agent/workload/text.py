"""Made-up text whose length in tokens is known: a word of the list is one token in the usual BPE vocabularies.

The words stand with a space before each, as they do inside a sentence; so texts of N words that are joined keep the
number of their tokens, and texts that share their first words share their first tokens.
"""

from __future__ import annotations

import random
from collections import OrderedDict

from .plan import BlocksPrompt

CHARS_PER_TOKEN = 4.0  # of English and code in the usual vocabularies, where only characters are known

_WORD_LIST = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
one you were all her she there would their we him been has when who will no more if out so up said what its
about than into them can only other time new some could these two may first then do any like my now over such
our man me even most made after also did many off before must well back through years where much your way down
should because long each just state those people too mr how little good world make very year still see own work
men day get here between both life being under three never know same last another while us might great go come
since against right came take used himself few house use place during high without again home around small
however found part school left number water away line end every point side always set body read value name list
call test file change page order open form code type start given result table field level group class light area
"""
WORDS = tuple(_WORD_LIST.split())


def estimated_tokens(text: str) -> int:
    """About how many tokens a text has, where no tokenizer is at hand."""
    return max(1, round(len(text) / CHARS_PER_TOKEN)) if text else 0


def made_up_text(rng: random.Random, num_tokens: int) -> str:
    """``num_tokens`` words, each with a space before it."""
    return "".join(f" {word}" for word in rng.choices(WORDS, k=num_tokens))


class BlockTexts:
    """The texts of hash ids: the same id of a namespace is the same text, on every machine and in every run.

    Keeps the most recent ``capacity`` texts, so that a trace of millions of blocks does not fill the memory.
    """

    def __init__(self, capacity: int = 20_000) -> None:
        self._capacity = capacity
        self._texts: OrderedDict[tuple[str, int, int], str] = OrderedDict()

    def text(self, prompt: BlocksPrompt) -> str:
        """The prompt of ``num_tokens`` words; the last block is cut, and one more is made up when ids are too few."""
        pieces: list[str] = []
        left = prompt.num_tokens
        for hash_id in prompt.hash_ids:
            if left <= 0:
                break
            block = self._block(prompt.namespace, hash_id, prompt.block_tokens)
            pieces.append(block if left >= prompt.block_tokens else _first_words(block, left))
            left -= prompt.block_tokens
        if left > 0:
            pieces.append(made_up_text(random.Random(f"rest/{prompt.namespace}/{prompt.hash_ids[-1:]}"), left))
        return "".join(pieces)

    def _block(self, namespace: str, hash_id: int, tokens: int) -> str:
        key = (namespace, hash_id, tokens)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = made_up_text(random.Random(f"block/{namespace}/{hash_id}"), tokens)
            if len(self._texts) > self._capacity:
                self._texts.popitem(last=False)
        else:
            self._texts.move_to_end(key)
        return text


def _first_words(text: str, count: int) -> str:
    return "".join(f" {word}" for word in text.split()[:count])
