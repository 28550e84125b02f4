"""How long a session wants its path to be kept, and how much that counts."""

from __future__ import annotations

import enum
import math

import msgspec

from ..errors import RequestError


class Verdict(enum.StrEnum):
    """What became of a wish to keep a path."""

    ACCEPTED = "accepted"
    CLIPPED = "clipped"  # a part of the path is kept as asked
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
