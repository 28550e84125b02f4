"""What the dashboard shows, as one JSON object that is small however much happens."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from ..engine.messages import EngineStats
from ..observe.histogram import Histogram
from ..observe.observatory import Observatory
from ..observe.timeline import SessionLine
from .cache_answers import reuse_of

SHOWN_MISSES = 30
SHOWN_EVENTS = 30
RECENT_TURNS = 12


def overview(seen: Observatory, stats: EngineStats, most_sessions: int) -> dict[str, Any]:
    """Everything that moves: reuse by window, times, the engine, tiers, the latest misses, and a line a session."""
    now = seen.now()
    return {
        "at": seen.wall_now(),
        "model": seen.model,
        "changes": seen.num_events,
        "reuse": {name: msgspec.to_builtins(reuse_of(of)) for name, of in seen.reuse.total.windows(now).items()},
        "times": {
            "ttft": _times(seen.times.time_to_first_token),
            "itl": _times(seen.times.inter_token_latency),
            "queue": _times(seen.times.queue),
            "prefill": _times(seen.times.prefill),
        },
        "history": _history(seen, now),
        "engine": _engine(stats),
        "tiers": [msgspec.to_builtins(tier) for tier in stats.tiers],
        "misses": [miss.to_json() for miss in seen.misses.latest(SHOWN_MISSES)],
        "misses_by_rule": dict(seen.misses.by_rule),
        "events": [msgspec.to_builtins(event) for event in list(seen.kv_events.latest)[-SHOWN_EVENTS:]],
        "sessions": [_summary(name, line) for name, line in seen.timelines.lines.latest(most_sessions)],
        "num_sessions": len(seen.timelines.lines),
    }


def timeline(seen: Observatory, session: str) -> dict[str, Any] | None:
    """One session's turns, and the sessions that branched off it; None if it is not known (any more)."""
    line = seen.timelines.lines.get(session)
    if line is None:
        return None
    branches = [
        {"session": name, "turns": other.num_turns, "first_at": other.first_at, "last_at": other.last_at}
        for name, other in seen.timelines.lines.latest(len(seen.timelines.lines))
        if other.parent == session
    ]
    return {
        **_summary(session, line),
        "turns": [msgspec.to_builtins(turn) for turn in line.turns],
        "branches": branches[:50],
        "misses": [miss.to_json() for miss in seen.misses.latest(20, session=session)],
    }


def _summary(name: str, line: SessionLine) -> dict[str, Any]:
    last = line.turns[-1] if line.turns else None
    recent = reversed(list(itertools.islice(reversed(line.turns), RECENT_TURNS)))
    return {
        "session": name,
        "tenant": line.tenant,
        "parent": line.parent,
        "running": line.running,
        "num_turns": line.num_turns,
        "tier": line.tier,
        "last_at": line.last_at,
        "tokens": last.prompt_tokens + last.completion_tokens if last else 0,
        "hit_rate": line.cached_tokens / line.prompt_tokens if line.prompt_tokens else None,
        "recent": [round(turn.by_source.cached / max(1, turn.prompt_tokens), 3) for turn in recent],
        "rule": line.rule,
    }


def _history(seen: Observatory, now: float) -> list[dict[str, float | int | None]]:
    """The last minutes, in slots of a few seconds."""
    counts = seen.reuse.total.history(now)
    first, tokens = seen.times.recent_first_tokens.means(now), seen.times.recent_tokens.means(now)
    return [
        {
            "prompt_tokens": of.prompt_tokens,
            "cached_tokens": of.cached_tokens,
            "reusable_tokens": of.reusable_tokens,
            "ttft_s": ttft,
            "itl_s": itl,
        }
        for of, ttft, itl in zip(counts, first, tokens, strict=True)
    ]


def _times(histogram: Histogram) -> dict[str, float | int | None]:
    return {
        "p50": histogram.quantile(0.5),
        "p90": histogram.quantile(0.9),
        "p99": histogram.quantile(0.99),
        "count": histogram.count,
        "total": histogram.total,
    }


def _engine(stats: EngineStats) -> dict[str, Any]:
    return {
        "running": stats.running,
        "waiting": stats.waiting,
        "blocks": {
            "total": stats.total_blocks,
            "free": stats.free_blocks,
            "cached": stats.cached_blocks,
            "used": stats.used_blocks,
        },
        "generated_tokens": stats.generated_tokens,
        "drafted_tokens": stats.drafted_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "steps": stats.steps,
        "step_s": stats.step_s,
        "preemptions": stats.preemptions,
        "evicted_blocks": stats.evicted_blocks,
        "prefill_tokens_per_s": stats.prefill_tokens_per_s,
    }
