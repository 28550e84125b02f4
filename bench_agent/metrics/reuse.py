"""How much of each prompt a perfect cache could have reused, as seen from outside.

Texts are cut into blocks of characters whose keys are chained, so that a block counts only when all before it were
equal. A prompt is known from the moment it was sent, an answer from its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BLOCK_CHARS = 64


@dataclass(frozen=True, slots=True)
class SentPrompt:
    """A prompt in pieces (messages with their role marks, or one text), the answer, and when they were known."""

    started_s: float
    ended_s: float
    pieces: tuple[str, ...]
    answer: str


def reusable_shares(prompts: Sequence[SentPrompt]) -> list[float]:
    """For each prompt, the share of its characters that a beginning known when it was sent covers."""
    known: set[int] = set()
    shares = [0.0] * len(prompts)
    moments = [(prompt.started_s, 1, index) for index, prompt in enumerate(prompts)]
    moments += [(prompt.ended_s, 0, index) for index, prompt in enumerate(prompts) if prompt.answer]
    for _, starts, index in sorted(moments):
        prompt = prompts[index]
        text = "".join(prompt.pieces)
        if not starts:
            known.update(_keys(text + prompt.answer))
            continue
        keys = list(_keys(text))
        matched = 0
        for key in keys:
            if key not in known:
                break
            matched += 1
        shares[index] = matched * BLOCK_CHARS / len(text) if text else 0.0
        known.update(keys[matched:])
    return shares


def _keys(text: str) -> Iterable[int]:
    key = 0
    for start in range(0, len(text) - BLOCK_CHARS + 1, BLOCK_CHARS):
        key = hash((key, text[start : start + BLOCK_CHARS]))
        yield key
