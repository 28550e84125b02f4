"""How long each tool of each tenant takes, as its sessions saw it."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

_Value = TypeVar("_Value")

MAX_TENANTS = 1_000
MAX_TOOLS = 200  # of one tenant; the one that was used longest ago makes room
MIN_OBSERVATIONS = 3  # before anything is concluded
_SHORTEST_S = 0.001
_GROWTH = 1.1  # from one bucket's bound to the next: a quantile is off by 5% at most
_NUM_BUCKETS = math.ceil(math.log(864_000 / _SHORTEST_S, _GROWTH)) + 1  # up to ten days
_MEMORY = 200.0  # observations after which an old one counts about a third


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A sketch as it is kept."""

    weights: dict[Annotated[int, Meta(ge=0, le=_NUM_BUCKETS)], Annotated[float, Meta(ge=0)]]
    next_weight: Annotated[float, Meta(gt=0)]
    observations: Annotated[int, Meta(ge=0)]


class LatencySketch:
    """Quantiles of durations, of the recent past above all. Its size does not grow.

    A histogram with bounds that grow by a constant factor, so that the error is relative (DDSketch: Masson, Rim and
    Lee, 2019); old observations fade exponentially.
    """

    def __init__(self) -> None:
        self._weights: dict[int, float] = {}
        self._next_weight = 1.0
        self.observations = 0

    def to_bytes(self) -> bytes:
        """All of it, to be kept."""
        kept = _Kept(weights=self._weights, next_weight=self._next_weight, observations=self.observations)
        return msgspec.msgpack.encode(kept)

    @classmethod
    def from_bytes(cls, content: bytes) -> LatencySketch:
        """What ``to_bytes`` wrote.

        Raises:
            msgspec.DecodeError: it is something else.
        """
        kept = msgspec.msgpack.decode(content, type=_Kept)
        sketch = cls()
        sketch._weights, sketch._next_weight = kept.weights, kept.next_weight
        sketch.observations = kept.observations
        return sketch

    def observe(self, seconds: float) -> None:
        bucket = _bucket(seconds)
        self._weights[bucket] = self._weights.get(bucket, 0.0) + self._next_weight
        self._next_weight *= math.exp(1.0 / _MEMORY)
        self.observations += 1
        if self._next_weight > 1e100:
            self._weights = {key: weight / self._next_weight for key, weight in self._weights.items()}
            self._next_weight = 1.0

    def quantile(self, share: float) -> float:
        """Seconds within which ``share`` (0 to 1) of the durations lie. There must be an observation."""
        rest = share * sum(self._weights.values())
        for bucket in sorted(self._weights):
            rest -= self._weights[bucket]
            if rest <= 1e-12:
                return _middle(bucket)
        return _middle(max(self._weights))


def _bucket(seconds: float) -> int:
    if seconds <= _SHORTEST_S:
        return 0
    return min(math.ceil(math.log(seconds / _SHORTEST_S, _GROWTH)), _NUM_BUCKETS)


def _middle(bucket: int) -> float:
    return _SHORTEST_S * _GROWTH ** (bucket - 0.5) if bucket else _SHORTEST_S


class ToolLatencies:
    """Observed latencies by tenant and tool, bounded in both."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, OrderedDict[str, LatencySketch]] = OrderedDict()
        self._changed: dict[tuple[str, str], LatencySketch] = {}

    def observe(self, tenant: str, tool: str, seconds: float) -> None:
        """A result of ``tool`` came so many seconds after the turn that called it ended."""
        sketch = self._sketch(tenant, tool, LatencySketch())
        sketch.observe(max(seconds, 0.0))
        self._changed[tenant, tool] = sketch

    def recall(self, tenant: str, tool: str, sketch: LatencySketch) -> None:
        """``sketch`` is what was known of ``tool`` at an earlier time; what was seen since counts instead."""
        self._sketch(tenant, tool, sketch)

    def take_changed(self) -> dict[tuple[str, str], bytes]:
        """What is known, by tenant and tool, of those of which something was observed since the last time."""
        changed, self._changed = self._changed, {}
        return {key: sketch.to_bytes() for key, sketch in changed.items()}

    def _sketch(self, tenant: str, tool: str, fresh: LatencySketch) -> LatencySketch:
        tools = _latest(self._tenants, tenant, OrderedDict(), MAX_TENANTS)
        return _latest(tools, tool, fresh, MAX_TOOLS)

    def expected_idle_s(self, tenant: str, tool: str) -> tuple[float, float] | None:
        """Median and 95th percentile in seconds; None while too little is known."""
        sketch = self._tenants.get(tenant, OrderedDict()).get(tool)
        if sketch is None or sketch.observations < MIN_OBSERVATIONS:
            return None
        return sketch.quantile(0.5), sketch.quantile(0.95)


def _latest(entries: OrderedDict[str, _Value], key: str, fresh: _Value, limit: int) -> _Value:
    """The entry of ``key``, now the latest; the oldest goes when there are too many."""
    entry = entries.setdefault(key, fresh)
    entries.move_to_end(key)
    if len(entries) > limit:
        entries.popitem(last=False)
    return entry
