"""What one tenant may use in a minute, and at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ...sessions.errors import CapacityError
from .limits_config import LimitsConfig
from .messages import SubmitTurn, TurnUsage

MINUTE_S = 60.0
SLOT_RETRY_S = 1.0  # when a turn of a tenant may end is not known


@dataclasses.dataclass(slots=True)
class _Bucket:
    """Fills at ``rate`` a second up to a minute's worth. May go below zero: what a turn takes is known at its end."""

    rate: float
    level: float
    at: float

    def fill(self, now: float) -> None:
        self.level = min(self.rate * MINUTE_S, self.level + self.rate * (now - self.at))
        self.at = now

    @property
    def is_full(self) -> bool:
        return self.level >= self.rate * MINUTE_S


@dataclasses.dataclass(slots=True)
class _Tenant:
    running: int = 0
    turns: _Bucket | None = None
    tokens: _Bucket | None = None


class TenantLimits:
    """Token buckets a tenant (Turner, 1986): a minute's worth may be used at once, then as much as comes in.

    ``clock`` in seconds. A tenant that has used nothing for a minute is forgotten.
    """

    def __init__(self, config: LimitsConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}
        self.num_refused = 0

    def enter(self, turn: SubmitTurn) -> None:
        """Count ``turn`` in. Raises CapacityError, with the seconds until it may be sent again; nothing was counted."""
        now = self._clock()
        tenant = self._tenants.get(turn.tenant) or self._new_tenant(now)
        for bucket in (tenant.turns, tenant.tokens):
            if bucket is not None:
                bucket.fill(now)
        limit = self._config.concurrent_turns
        if limit and tenant.running >= limit:
            raise self._refusal(f"{tenant.running} turns of this tenant are running, {limit} may", SLOT_RETRY_S)
        if tenant.turns is not None and tenant.turns.level < 1.0:
            seconds = (1.0 - tenant.turns.level) / tenant.turns.rate
            raise self._refusal(f"a tenant may send {self._config.turns_per_minute} turns a minute", seconds)
        if tenant.tokens is not None and tenant.tokens.level <= 0.0:
            seconds = -tenant.tokens.level / tenant.tokens.rate + 1.0 / tenant.tokens.rate
            words = f"a tenant may have {self._config.tokens_per_minute} tokens a minute computed"
            raise self._refusal(words, seconds)
        if tenant.turns is not None:
            tenant.turns.level -= 1.0
        tenant.running += 1
        self._tenants[turn.tenant] = tenant

    def leave(self, turn: SubmitTurn, usage: TurnUsage | None) -> None:
        """Count ``turn`` out; ``usage`` None: it ended without one."""
        tenant = self._tenants[turn.tenant]
        tenant.running -= 1
        now = self._clock()
        if tenant.tokens is not None and usage is not None:
            tenant.tokens.fill(now)
            tenant.tokens.level -= usage.tokens_by_source.computed + usage.completion_tokens
        if not tenant.running:
            self._forget_idle(now)

    def _new_tenant(self, now: float) -> _Tenant:
        def bucket(per_minute: int) -> _Bucket | None:
            return _Bucket(per_minute / MINUTE_S, float(per_minute), now) if per_minute else None

        return _Tenant(0, bucket(self._config.turns_per_minute), bucket(self._config.tokens_per_minute))

    def _forget_idle(self, now: float) -> None:
        """Drop a few tenants that are as new ones: two a turn, so that the table never grows by more than it must."""
        for name in list(self._tenants)[:2]:
            tenant = self._tenants.pop(name)
            buckets = [bucket for bucket in (tenant.turns, tenant.tokens) if bucket is not None]
            for bucket in buckets:
                bucket.fill(now)
            if tenant.running or not all(bucket.is_full for bucket in buckets):
                self._tenants[name] = tenant  # looked at again after all others

    def _refusal(self, message: str, seconds: float) -> CapacityError:
        self.num_refused += 1
        return CapacityError(
            message, field="tenant", remedy=f"try again in {max(1.0, seconds):.0f} s or later", retry_after_s=seconds
        )
