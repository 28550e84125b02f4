"""How the next token of a turn is chosen, and when the turn ends."""

from __future__ import annotations

import msgspec

from ...sessions.errors import RequestError
from .grammar import Grammar

MAX_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_LOGIT_BIAS = 100.0


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sampling and stopping of one turn.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 switch these filters off. ``seed`` makes a
    turn reproducible alone and in any batch; None draws one. ``max_tokens`` counts sampled tokens, None means up to
    the context's end. ``stop_token_ids`` end the turn and belong to it; ``ignore_eos`` switches off the model's own
    end-of-turn tokens only. ``logprobs``: how many alternatives to report for each token (None: nothing, 0: only the
    sampled token's own).

    ``repetition_penalty`` 1 is off and looks at prompt and answer; ``presence_penalty`` and ``frequency_penalty`` 0 are
    off and look at the answer. ``logit_bias`` is added to the logits of these token ids. ``grammar``: what the answer
    must look like. In which order all this is applied stands in ``sampler``.
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
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    grammar: Grammar | None = None

    @property
    def adjusts_logits(self) -> bool:
        """Whether the logits are changed before a token is drawn, or its log probabilities are wanted."""
        return bool(
            self.has_penalties
            or self.logit_bias
            or self.min_tokens
            or self.grammar is not None
            or self.logprobs is not None
        )

    @property
    def has_penalties(self) -> bool:
        """Whether what was said before changes the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

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
            ("repetition_penalty", 0.0 < self.repetition_penalty <= 100.0, "more than 0 and at most 100"),
            ("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "from -2 to 2"),
            ("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "from -2 to 2"),
            ("logit_bias", len(self.logit_bias) <= MAX_LOGIT_BIASES, f"at most {MAX_LOGIT_BIASES} ids"),
            (
                "logit_bias",
                all(abs(bias) <= MAX_LOGIT_BIAS for bias in self.logit_bias.values()),
                f"values from -{MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}",
            ),
        )
        for field, valid, remedy in checks:
            if not valid:
                raise RequestError(f"{field} is {getattr(self, field)!r}", field=field, remedy=f"it must be {remedy}")
