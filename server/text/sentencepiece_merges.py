"""The merges of a SentencePiece BPE vocabulary, which keeps scores instead."""

from __future__ import annotations

from collections.abc import Sequence


def merges_by_score(words: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Pairs to merge, in order. A higher score is merged earlier; each way to split a word into two words is a pair.

    Among the splits of one word those of earlier words come first, as the pairs were found in training.
    """
    place = {word: index for index, word in enumerate(words)}
    ranked: list[tuple[float, int, int, int, tuple[str, str]]] = []
    for word, score in zip(words, scores, strict=True):
        for cut in range(1, len(word)):
            left, right = word[:cut], word[cut:]
            if left in place and right in place:
                ranked.append((-score, place[word], place[left], place[right], (left, right)))
    ranked.sort()
    return [pair for *_, pair in ranked]
