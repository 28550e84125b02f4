"""What is seen of one turn from outside, while it runs: kept even when the turn breaks off."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ..workload.plan import ToolCall


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the server says a turn cost. None: it does not say.

    ``by_source``: prompt tokens by where their KV came from; ``cached_tokens``: those that were not computed.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    by_source: dict[str, int] = {}
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None


@dataclass(slots=True)
class Observation:
    """Stamps are seconds of ``clock``. ``arrivals``: (time, tokens) of each piece of the answer.

    A piece counts one token where the wire does not say how many it holds.
    """

    clock: Callable[[], float] = time.perf_counter
    started: float = 0.0
    ended: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None
    retries: int = 0

    def arrived(self, text: str, tokens: int = 1, *, at: float | None = None) -> None:
        """A piece of the answer is here, and came in ``at`` (None: now), though not before the one before it."""
        earliest = self.arrivals[-1][0] if self.arrivals else self.started
        self.arrivals.append((self.clock() if at is None else max(at, earliest), tokens))
        self.pieces.append(text)

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self.pieces)


class TokenLogprob(msgspec.Struct, frozen=True):
    """A sampled token's text, the logarithm of its probability, and the likeliest tokens with theirs."""

    token: str
    logprob: float
    top: dict[str, float] = {}
