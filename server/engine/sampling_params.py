"""How the next token of a turn is chosen, and when the turn ends."""

from __future__ import annotations

import msgspec

from ...sessions.errors import RequestError

MAX_LOGPROBS = 20


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sampling and stopping of one turn.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 switch these filters off. ``seed`` makes a
    turn reproducible alone and in any batch; None draws one. ``max_tokens`` counts sampled tokens, None means up to
    the context's end. ``stop_token_ids`` end the turn and belong to it; ``ignore_eos`` switches off the model's own
    end-of-turn tokens only. ``logprobs``: how many alternatives to report for each token (None: nothing, 0: only the
    sampled token's own).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def validate(self) -> None:
        """Raise RequestError naming the first field that is out of range."""
        checks = (
            (
                "temperature",
                0.0 <= self.temperature <= 100.0,
                "a number from 0 to 100",
            ),
            ("top_k", self.top_k >= 0, "0 (off) or more"),
            ("top_p", 0.0 < self.top_p <= 1.0, "more than 0 and at most 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "from 0 to 1"),
            ("seed", self.seed is None or 0 <= self.seed < 2**63, "from 0 to 2^63 - 1"),
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "1 or more, or left out"),
            ("min_tokens", self.min_tokens >= 0, "0 or more"),
            (
                "min_tokens",
                self.max_tokens is None or self.min_tokens <= self.max_tokens,
                "at most max_tokens",
            ),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS, f"from 0 to {MAX_LOGPROBS}"),
            ("stop_token_ids", len(self.stop_token_ids) <= 64, "at most 64 ids"),
        )
        for field, valid, remedy in checks:
            if not valid:
                raise RequestError(f"{field} is {getattr(self, field)!r}", field=field, remedy=f"it must be {remedy}")
