"""Money for tokens that were computed again instead of read from the cache."""

from __future__ import annotations

from pathlib import Path

import msgspec

from .errors import LintConfigError


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars for a million input tokens, computed and read from the cache."""

    input: float
    cached: float


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices by the beginning of a model's name; the longest match counts."""

    dated: str
    models: dict[str, Price]

    def loss(self, model: str, tokens: int) -> float | None:
        """What `tokens` computed again cost more than a cache read; None for unknown (and local) models."""
        name = model.rsplit("/", 1)[-1].rsplit("anthropic.", 1)[-1].lower()
        known = max((key for key in self.models if name.startswith(key)), key=len, default=None)
        if known is None:
            return None
        price = self.models[known]
        return tokens * (price.input - price.cached) / 1_000_000


DEFAULT_PRICES = Prices(
    dated="2025-12-01",
    models={
        "claude-sonnet": Price(3.0, 0.3),
        "claude-opus": Price(5.0, 0.5),
        "claude-haiku": Price(1.0, 0.1),
        "gpt-5": Price(1.25, 0.125),
        "gpt-5-mini": Price(0.25, 0.025),
        "gpt-5-nano": Price(0.05, 0.005),
        "gpt-4.1": Price(2.0, 0.5),
        "gpt-4o": Price(2.5, 1.25),
        "gpt-4o-mini": Price(0.15, 0.075),
        "gemini-2.5-pro": Price(1.25, 0.125),
        "gemini-2.5-flash": Price(0.3, 0.03),
    },
)


def load_prices(path: Path) -> Prices:
    """Read a price file: TOML with `dated` and `[models.NAME] input, cached`.

    Raises: LintConfigError when it cannot be read.
    """
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Prices)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise LintConfigError(f"{path}: {error}") from error
