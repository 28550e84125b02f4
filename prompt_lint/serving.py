"""PL407, PL801 to PL804, PL901, PL607: what time, replicas and measured counts say."""

from __future__ import annotations

from collections.abc import Iterator

from .causes import Loss
from .findings import Severity
from .lineage import Entry, Lineage, Match
from .profiles import CacheProfile
from .prompt import CHARS_PER_TOKEN, Prompt
from .request import Usage
from .rules.base import Verdict
from .severity import Recurrence

Judged = tuple[Verdict, Loss, str | None]

_COMPACTION_GAP = 5
_MISS_SHARE = 0.2
_MISS_TOKENS = 512
_BURST = 3
_BURST_TOKENS = 1024


class ServingJudge:
    """Rules that compare what was predicted with clocks and with what was measured."""

    def __init__(self, kv_tokens: int | None = None) -> None:
        self._kv_tokens = kv_tokens
        self._computed = 0
        self._computed_at: dict[int, int] = {}
        self.said: set[object] = set()
        self.frozen: dict[int, list[Loss]] = {}
        self._compactions: dict[int, list[int]] = {}
        self._rates: list[float] = []
        self._burst_of: dict[int, list[Prompt]] = {}

    def judge(
        self, entry: Entry, parent: Entry | None, match: Match, profile: CacheProfile, explained: bool
    ) -> Iterator[Judged]:
        """Verdicts about how a request was served."""
        prompt = entry.prompt
        self._rate(prompt)
        self._computed += max(0, prompt.estimated_tokens - match.cached_chars // CHARS_PER_TOKEN)
        self._computed_at[prompt.request.index] = self._computed
        if parent is None:
            yield from self._cold_burst(entry, match)
            return
        expired = self._expired(parent.prompt, prompt, profile)
        if expired:
            yield expired
        elif not explained:
            yield from self._missed(parent.prompt, prompt)

    def compaction(self, lineage: Lineage) -> Verdict | None:
        """A verdict when a lineage is compacted again before the last time paid off."""
        times = self._compactions.setdefault(lineage.number, [])
        times.append(lineage.length)
        if len(times) < 2 or times[-1] - times[-2] > _COMPACTION_GAP:
            return None
        return Verdict(
            "PL407",
            f"the history was compacted again after {times[-1] - times[-2]} requests",
            recurrence=Recurrence.EACH_REQUEST,
        )

    def frozen_tail(self, lineage: Lineage, lost: int, total: int) -> None:
        """Note what lies behind a marker that does not move."""
        self.frozen.setdefault(lineage.number, []).append(Loss(lost, total))

    def prefill_rate(self) -> float | None:
        """Median of (computed tokens / time to first token) in tokens a second, where both were recorded."""
        rates = sorted(self._rates)
        return rates[len(rates) // 2] if rates else None

    def _rate(self, prompt: Prompt) -> None:
        usage, ttft = prompt.request.usage, prompt.request.ttft_ms
        if usage and ttft and usage.cached_tokens is not None:
            computed = usage.prompt_tokens - usage.cached_tokens
            if computed >= 32:
                self._rates.append(1000.0 * computed / ttft)

    def _expired(self, previous: Prompt, current: Prompt, profile: CacheProfile) -> Judged | None:
        was, now = previous.request, current.request
        if was.timestamp is None or now.timestamp is None or not profile.lifetimes:
            return None
        gap = now.timestamp - was.timestamp
        lifetime = _lifetime(previous, profile)
        usage = now.usage
        missed = (
            usage is not None and usage.cached_tokens is not None and usage.cached_tokens < 0.5 * _reusable(previous)
        )
        certain = profile.hard_lifetime and (usage is None or usage.cached_tokens is None) and previous.marked
        if gap <= lifetime or not (missed or certain):
            return None
        lost = _reusable(previous) - (usage.cached_tokens or 0 if usage else 0)
        message = f"{_spoken(gap)} passed since the request before; the cache keeps a prefix {_spoken(lifetime)}"
        verdict = Verdict("PL801", message, Recurrence.NOW_AND_THEN)
        return verdict, Loss(max(0, lost), current.tokens), "timestamp"

    def _missed(self, previous: Prompt, current: Prompt) -> Iterator[Judged]:
        usage = current.request.usage
        if usage is None or usage.cached_tokens is None:
            return
        predicted = min(_reusable(previous), usage.prompt_tokens)
        lost = predicted - usage.cached_tokens
        if lost < max(_MISS_TOKENS, _MISS_SHARE * usage.prompt_tokens):
            return
        loss = Loss(lost, usage.prompt_tokens)
        was, now = previous.request.replica, current.request.replica
        if was and now and was != now:
            yield Verdict("PL804", f"the prefix lies on {was}, the request went to {now}"), loss, "replica"
            return
        if current.request.notes.get("evicted") or self._outgrown(previous):
            yield Verdict("PL803", "the server had evicted the prefix"), loss, "usage"
            return
        message = f"{usage.cached_tokens} cached tokens were measured where about {predicted} were there"
        yield Verdict("PL901", message, cap=Severity.WARNING, floor=Severity.WARNING), loss, "usage"

    def _outgrown(self, previous: Prompt) -> bool:
        """More was computed since the earlier request than the cache holds."""
        since = self._computed - self._computed_at.get(previous.request.index, self._computed)
        return self._kv_tokens is not None and since + previous.tokens > self._kv_tokens

    def _cold_burst(self, entry: Entry, match: Match) -> Iterator[Judged]:
        """Requests with one new prefix that start before the first can have written it."""
        prompt, nearest = entry.prompt, match.nearest
        request = prompt.request
        if request.timestamp is None or nearest is None:
            return
        group = self._burst_of.get(nearest.prompt.request.index) or [nearest.prompt]
        first = group[0].request
        wait = first.ttft_ms or first.latency_ms
        shared = match.cached_chars // CHARS_PER_TOKEN
        cold = request.usage is None or not request.usage.cached_tokens
        if wait is None or first.timestamp is None or shared < _BURST_TOKENS or not cold:
            return
        if request.timestamp - first.timestamp >= wait / 1000.0:
            return
        group.append(prompt)
        self._burst_of[request.index] = self._burst_of[first.index] = group
        if len(group) == _BURST:
            message = f"{_BURST} requests with one new prefix started before the first had its first token"
            yield Verdict("PL802", message, cap=Severity.WARNING), Loss(shared, prompt.tokens), "timestamp"


def _reusable(previous: Prompt) -> int:
    """Tokens of the earlier prompt, measured where possible."""
    usage: Usage | None = previous.request.usage
    return usage.prompt_tokens if usage and usage.prompt_tokens else previous.estimated_tokens


def _lifetime(previous: Prompt, profile: CacheProfile) -> float:
    lives = [profile.lifetimes.get(ttl) for _, ttl in previous.marker_positions]
    known: list[float] = [life for life in lives if life is not None]
    noted = profile.lifetimes.get(str(previous.request.notes.get("ttl", "")))
    if noted:
        known.append(noted)
    return max(known) if known else min(profile.lifetimes.values())


def _spoken(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
