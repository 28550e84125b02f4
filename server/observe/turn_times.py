"""How long turns took, in histograms."""

from __future__ import annotations

from collections import Counter, deque

from .histogram import LATENCIES, TOKEN_TIMES, Histogram
from .reuse_counts import HISTORY_SLOTS, SLOT_S
from .turn_record import TurnRecord


class SlotMeans:
    """Means of the last minutes, one for each few seconds."""

    def __init__(self) -> None:
        self._slots: deque[tuple[int, float, int]] = deque(maxlen=HISTORY_SLOTS)  # number, sum, count

    def add(self, total: float, count: int, now: float) -> None:
        """Note ``count`` values that sum to ``total``."""
        number = int(now // SLOT_S)
        if self._slots and self._slots[-1][0] == number:
            _, before, counted = self._slots.pop()
            total, count = total + before, count + counted
        self._slots.append((number, total, count))

    def means(self, now: float) -> list[float | None]:
        """One for each of the last ``HISTORY_SLOTS`` slots, oldest first; None where nothing was noted."""
        known = {number: total / count for number, total, count in self._slots if count}
        last = int(now // SLOT_S)
        return [known.get(number) for number in range(last - HISTORY_SLOTS + 1, last + 1)]


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
        self.recent_first_tokens = SlotMeans()
        self.recent_tokens = SlotMeans()

    def first_token(self, seconds: float, now: float) -> None:
        """The first token of a turn came."""
        self.time_to_first_token.observe(seconds)
        self.recent_first_tokens.add(seconds, 1, now)

    def more_tokens(self, seconds: float, count: int, now: float) -> None:
        """``count`` further tokens came at once, ``seconds`` after those before."""
        self.inter_token_latency.observe(seconds / count, count)
        self.recent_tokens.add(seconds, count, now)

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
