"""How much of a prompt a cache would have served."""

from __future__ import annotations

from .profiles import CacheProfile
from .prompt import Prompt


def estimated_reuse(prompt: Prompt, cached_chars: int, profile: CacheProfile) -> int:
    """Tokens of ``prompt`` that the profile's cache serves where it holds the first ``cached_chars`` characters."""
    return min(prompt.estimated_tokens, profile.usable(prompt.measure(0, cached_chars)))
