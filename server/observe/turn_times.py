"""How long turns took, in histograms."""

from __future__ import annotations

from collections import Counter

from .histogram import LATENCIES, TOKEN_TIMES, Histogram
from .turn_record import TurnRecord


class TurnTimes:
    """Alone notes the times and the outcomes of turns. One asyncio loop uses it."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(LATENCIES)
        self.inter_token_latency = Histogram(TOKEN_TIMES)
        self.queue = Histogram(LATENCIES)
        self.load = Histogram(LATENCIES)
        self.prefill = Histogram(LATENCIES)
        self.decode = Histogram(LATENCIES)
        self.turn = Histogram(LATENCIES)
        self.outcomes: Counter[str] = Counter()

    def first_token(self, seconds: float) -> None:
        """The first token of a turn came."""
        self.time_to_first_token.observe(seconds)

    def more_tokens(self, seconds: float, count: int) -> None:
        """``count`` further tokens came at once, ``seconds`` after those before."""
        self.inter_token_latency.observe(seconds / count, count)

    def ended(self, record: TurnRecord) -> None:
        """A turn is over."""
        self.outcomes[record.outcome] += 1
        self.turn.observe(record.duration_s)
        usage = record.usage
        if usage is not None:
            self.queue.observe(usage.queue_s)
            self.prefill.observe(usage.prefill_s)
            self.decode.observe(usage.decode_s)
            if usage.tokens_by_source.host or usage.tokens_by_source.disk or usage.tokens_by_source.shared:
                self.load.observe(usage.load_s)
