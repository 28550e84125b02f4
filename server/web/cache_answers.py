"""What ``/v1/cache/…`` answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...sessions.cache.tree_view import TreeNode
from ..engine.messages import EngineStats, MissedTokens, TierCounters, TokensBySource
from ..observe.miss_log import LoggedMiss
from ..observe.observatory import Observatory
from ..observe.reuse_counts import ReuseCounts, ReuseTable, WindowedCounts

Share = Annotated[float | None, Meta(description="of prompt_tokens; null before any prompt")]


class Reuse(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens of some turns, each counted once, when its turn was admitted.

    ``by_source`` sums to ``prompt_tokens``; ``missed`` sums to ``reusable_tokens - cached_tokens``.
    """

    turns: int
    prompt_tokens: int
    cached_tokens: int
    reusable_tokens: Annotated[int, Meta(description="what a cache without bounds would have had")]
    hit_rate: Share
    reusable_rate: Share
    by_source: TokensBySource
    missed: MissedTokens


class SessionReuse(msgspec.Struct, frozen=True, kw_only=True):
    """One session's. ``reuse`` is that of ``windows.start``: since the server's start."""

    session: str
    tenant: str
    reuse: Reuse
    windows: dict[str, Reuse]


class HitRate(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``GET /v1/cache/hit-rate``. Windows are ``1m``, ``5m``, ``1h`` and ``start``: the server's.

    The first fields are those of ``windows.start``. ``index_is_exact`` false: the index of what was ever computed was
    full at some time, and ``reusable_tokens`` are a lower bound.
    """

    prompt_tokens: int
    cached_tokens: int
    reusable_tokens: int
    hit_rate: Share
    reusable_rate: Share
    by_source: TokensBySource
    missed: MissedTokens
    index_is_exact: bool
    windows: dict[str, Reuse]
    tenants: Annotated[dict[str, dict[str, Reuse]], Meta(description="by tenant and window; the latest ones")]
    models: Annotated[dict[str, dict[str, Reuse]], Meta(description="by model and window")]
    sessions: Annotated[list[SessionReuse], Meta(description="the latest first")]


class MissList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``GET /v1/cache/misses``: the latest first, and since the start by rule."""

    misses: list[dict[str, Any]]
    by_rule: dict[str, int]
    lost_tokens_by_kind: dict[str, int]
    not_explained: Annotated[dict[str, int], Meta(description="turns whose answer could not say it, by why")]
    waiting: Annotated[int, Meta(description="requests whose explanation is not made yet; their misses come later")] = 0


class TreeTop(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``GET /v1/cache/tree``: the top of the radix tree, parents before their children."""

    tree_blocks: int
    pinned_blocks: int
    block_tokens: int
    tier: Literal["device"] = "device"
    nodes: tuple[TreeNode, ...]


class TierState(msgspec.Struct, frozen=True, kw_only=True):
    """One tier. ``break_even_tokens``: from how many tokens on a load beats computing them (null: never, or unknown);
    ``prediction_factor``: by which factor predicted load times are off, typically."""

    tier: str
    used_bytes: int
    capacity_bytes: int
    read_bytes_per_s: float = 0.0
    write_bytes_per_s: float = 0.0
    break_even_tokens: int | None = None
    prediction_factor: float | None = None
    events: dict[str, int] = {}
    unavailable: Annotated[str, Meta(description="why it answers nothing now; empty when it works")] = ""


class Tiers(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``GET /v1/cache/tiers``, the fastest first."""

    tiers: list[TierState]
    prefill_tokens_per_s: float


def reuse_of(counts: ReuseCounts) -> Reuse:
    """Counts with their shares."""
    prompt = counts.prompt_tokens
    return Reuse(
        turns=counts.turns,
        prompt_tokens=prompt,
        cached_tokens=counts.cached_tokens,
        reusable_tokens=counts.reusable_tokens,
        hit_rate=counts.cached_tokens / prompt if prompt else None,
        reusable_rate=counts.reusable_tokens / prompt if prompt else None,
        by_source=counts.by_source,
        missed=counts.missed,
    )


def hit_rate_of(seen: Observatory, stats: EngineStats, tenant: str | None, *, sessions: int, tenants: int) -> HitRate:
    """The whole server's, or one tenant's alone."""
    table, now = seen.reuse, seen.now()
    named = table.tenants.latest(tenants) if tenant is None else [(tenant, table.tenants.get(tenant))]
    counted = table.total if tenant is None else table.tenants.get(tenant) or WindowedCounts()
    windows = {name: reuse_of(counts) for name, counts in counted.windows(now).items()}
    start = windows["start"]
    shown = [_session_reuse(table, name, of.tenant) for name, of in table.latest_sessions(sessions, tenant)]
    return HitRate(
        prompt_tokens=start.prompt_tokens,
        cached_tokens=start.cached_tokens,
        reusable_tokens=start.reusable_tokens,
        hit_rate=start.hit_rate,
        reusable_rate=start.reusable_rate,
        by_source=start.by_source,
        missed=start.missed,
        index_is_exact=stats.reuse.index_forgotten == 0,
        windows=windows,
        tenants={name: _windows(counts, now) for name, counts in named if counts is not None},
        models={} if tenant is not None else {name: _windows(of, now) for name, of in table.models.latest(16)},
        sessions=shown,
    )


def misses_of(seen: Observatory, misses: list[LoggedMiss], *, counters: bool) -> MissList:
    """Some misses, with the whole server's counters if those are to be told."""
    log, explainer = seen.misses, seen.explainer
    return MissList(
        misses=[miss.to_json() for miss in misses],
        by_rule=dict(log.by_rule) if counters else {},
        lost_tokens_by_kind=dict(log.tokens_by_family) if counters else {},
        not_explained={
            "queue_full": explainer.num_dropped,
            "too_late": seen.num_late,
            "unreadable": explainer.num_failed,
        }
        if counters
        else {},
        waiting=explainer.num_waiting,
    )


def device_state(stats: EngineStats, block_bytes: int) -> TierState:
    """The KV pool as a tier."""
    held = stats.total_blocks - stats.free_blocks
    return TierState(
        tier="device",
        used_bytes=held * block_bytes,
        capacity_bytes=stats.total_blocks * block_bytes,
        events={"evicted": stats.evicted_blocks},
    )


def tier_state(counters: TierCounters, break_even: dict[str, int | None]) -> TierState:
    """A lower tier."""
    return TierState(
        tier=counters.tier,
        used_bytes=counters.used_bytes,
        capacity_bytes=counters.capacity_bytes,
        read_bytes_per_s=counters.read_bandwidth,
        write_bytes_per_s=counters.write_bandwidth,
        break_even_tokens=break_even.get(counters.tier),
        prediction_factor=counters.typical_error,
        events=counters.events,
        unavailable=counters.unavailable,
    )


def _session_reuse(table: ReuseTable, name: str, tenant: str) -> SessionReuse:
    windows = {window: reuse_of(counts) for window, counts in table.session_windows(name).items()}
    return SessionReuse(session=name, tenant=tenant, reuse=windows["start"], windows=windows)


def _windows(counts: WindowedCounts, now: float) -> dict[str, Reuse]:
    return {name: reuse_of(one) for name, one in counts.windows(now).items()}
