"""A server's time to the first token of prompts that it cannot know: a constant and a time for each token.

With it the tokens that a turn really computed are told from its time to the first token alone, whatever the server
says it reused. Waiting behind other turns counts as computing, so with several sessions at a time it is a lower bound
of what was reused.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .records import TurnRecord


class PrefillFit(msgspec.Struct, frozen=True, kw_only=True):
    """``seconds = base_s + token_s * tokens``, from ``samples`` cold prompts."""

    base_s: float
    token_s: float
    samples: int


def fit(samples: Sequence[tuple[int, float]]) -> PrefillFit | None:
    """Least squares over (tokens, seconds); None when tokens do not differ, or longer prompts are not slower."""
    if len({tokens for tokens, _ in samples}) < 2:
        return None
    mean_tokens = sum(tokens for tokens, _ in samples) / len(samples)
    mean_s = sum(seconds for _, seconds in samples) / len(samples)
    spread = sum((tokens - mean_tokens) ** 2 for tokens, _ in samples)
    token_s = sum((tokens - mean_tokens) * (seconds - mean_s) for tokens, seconds in samples) / spread
    if token_s <= 0:
        return None
    return PrefillFit(base_s=max(0.0, mean_s - token_s * mean_tokens), token_s=token_s, samples=len(samples))


def reused_share(turns: Sequence[TurnRecord], found: PrefillFit) -> float | None:
    """The share of the prompts' tokens that cannot have been computed in the time that passed."""
    prompt = computed = 0.0
    for turn in turns:
        if turn.ttft_s is None or not turn.prompt_tokens:
            continue
        prompt += turn.prompt_tokens
        computed += min(float(turn.prompt_tokens), max(0.0, (turn.ttft_s - found.base_s) / found.token_s))
    return 1 - computed / prompt if prompt else None
