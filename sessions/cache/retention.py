"""How long a session wants its path to be kept, and how much that counts."""

from __future__ import annotations

import dataclasses
import enum
import math

import msgspec

from ..errors import RequestError


class Verdict(enum.StrEnum):
    """What became of a wish to keep a path."""

    ACCEPTED = "accepted"
    CLIPPED = "clipped"  # a part of the path is kept as asked, or its owner is awaited but not pinned
    REJECTED = "rejected"


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to keep a path on the device.

    ``ttl_s``: for so many seconds; None: until it is released or, with ``expected_idle_s`` and nothing else, not at all
    beyond what is expected. ``priority``: a pinned path goes after all that are not pinned, or pinned with less; one
    of negative priority goes before them. ``hard``: it does not go at all, except where a turn could never run
    otherwise; the server has a budget for that. ``expected_idle_s``: the session comes back after about these seconds
    (median, 95th percentile) from now, as a tool's result does: until then it is as good as just used.
    """

    priority: int = 0
    ttl_s: float | None = None
    hard: bool = False
    expected_idle_s: tuple[float, float] | None = None

    @property
    def is_pin(self) -> bool:
        """It asks for more than to be expected back."""
        return self.hard or self.priority != 0 or self.ttl_s is not None or self.expected_idle_s is None

    def validate(self) -> None:
        """Raise RequestError naming the first field that is out of range."""
        if not -100 <= self.priority <= 100:
            raise RequestError(
                f"priority is {self.priority}", field="retention.priority", remedy="it must be from -100 to 100"
            )
        if self.ttl_s is not None and not 0 < self.ttl_s < math.inf:
            raise RequestError(
                f"ttl_s is {self.ttl_s}",
                field="retention.ttl_s",
                remedy="give seconds above 0, or leave it out to pin until the release",
            )
        if self.expected_idle_s is not None:
            p50, p95 = self.expected_idle_s
            if not 0 <= p50 <= p95 < math.inf:
                raise RequestError(
                    f"expected_idle_s is {self.expected_idle_s}",
                    field="retention.expected_idle_s",
                    remedy="give the median and the 95th percentile in seconds, the latter not less",
                )


@dataclasses.dataclass(frozen=True, slots=True)
class Keeping:
    """A retention from ``since`` on, in seconds of the tree's clock; ``retention`` None: nothing was asked for."""

    retention: Retention | None = None
    since: float = 0.0

    @property
    def ends_at(self) -> float:
        """When the pin is over by itself."""
        ttl_s = None if self.retention is None else self.retention.ttl_s
        return math.inf if ttl_s is None else self.since + ttl_s

    @property
    def due(self) -> float:
        """When the owner is expected back, as likely as not; infinite: nothing is known."""
        expected = None if self.retention is None else self.retention.expected_idle_s
        return math.inf if expected is None else self.since + expected[0]

    @property
    def overdue(self) -> float:
        """When what was expected of the owner's return has turned out wrong."""
        expected = None if self.retention is None else self.retention.expected_idle_s
        return math.inf if expected is None else self.since + expected[1]

    def pin_level(self, now: float) -> int:
        """0: not pinned; above: pinned, the higher the longer; below: to go before others."""
        if self.retention is None or not self.retention.is_pin or now >= self.ends_at:
            return 0
        return self.retention.priority + (self.retention.priority >= 0)

    def is_awaited(self, now: float, horizon_s: float) -> bool:
        """The owner is expected back within ``horizon_s``, and not overdue."""
        return self.due - now <= horizon_s and now < self.overdue

    def absence(self, now: float) -> float:
        """Seconds from the hint to the expected return, while that is ahead; else 0."""
        return self.due - self.since if now < self.due < math.inf else 0.0

    def holds_until(self, now: float, horizon_s: float) -> float:
        """Until when ``pin_level``, ``is_awaited`` and ``absence`` stay what they are; infinite: for ever."""
        changes = (self.ends_at, self.due - horizon_s, self.due, self.overdue)
        return min((change for change in changes if change > now), default=math.inf)

    def without_pin(self) -> Keeping:
        """What is expected of the owner's return, and nothing else."""
        expected = None if self.retention is None else self.retention.expected_idle_s
        return Keeping() if expected is None else Keeping(Retention(expected_idle_s=expected), self.since)

    def after_return(self) -> Keeping:
        """What is left of it once the owner is back: a pin, or nothing."""
        if self.retention is None or not self.retention.is_pin:
            return Keeping()
        return dataclasses.replace(self, retention=msgspec.structs.replace(self.retention, expected_idle_s=None))
