"""Fair shares between tenants: who was served least goes first.

Each tenant has a counter of the tokens computed for it, charged when a turn starts to run (its uncached prompt) and as
it decodes (virtual token counters: Sheng et al., "Fairness in Serving Large Language Models", 2024). A tenant that
begins to wait starts no lower than the *fair level*: what a tenant would have that waited all the time. So idle time
gains no credit, and what somebody was served beyond others is forgotten once the others have had as much. The level
rises with all that is computed, and falls with what is taken back, divided by the weights of the tenants that compete
for it, as the virtual time of weighted fair queueing does. A token counts for a tenant of weight 2 half as much as for
one of weight 1.
"""

from __future__ import annotations

from collections.abc import Mapping

FORGET_ABOVE = 1024  # counters that are looked through for what can be forgotten, beside two for each that waits


class FairShares:
    """Counters of one class of turns. ``weights`` by tenant, above 0; tenants that are not named have 1."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._competing = 0.0  # the weights of those that wait
        self._served: dict[str, float] = {}  # of those that wait, and of others where it is above the level
        self._num_waiting: dict[str, int] = {}  # turns of each tenant that waits
        self._level = 0.0

    def served(self, tenant: str) -> float:
        """Tokens computed for ``tenant``, by its weight, as far as they count against it."""
        return self._served.get(tenant, self._level)

    def weight(self, tenant: str) -> float:
        """As configured."""
        return self._weights.get(tenant, 1.0)

    @property
    def spread(self) -> float:
        """By how much the tenant served most is ahead of the one served least, among those that wait."""
        served = [self.served(tenant) for tenant in self._num_waiting]
        return max(served) - min(served) if served else 0.0

    def join(self, tenant: str) -> None:
        """One more turn of ``tenant`` waits."""
        if tenant not in self._num_waiting:
            self._served[tenant] = max(self.served(tenant), self._level)
            self._competing += self.weight(tenant)
        self._num_waiting[tenant] = self._num_waiting.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        """One turn of ``tenant`` less waits."""
        self._num_waiting[tenant] -= 1
        if not self._num_waiting[tenant]:
            del self._num_waiting[tenant]
            self._competing = self._competing - self.weight(tenant) if self._num_waiting else 0.0
            self._forget()

    def choose(self, tenant: str) -> None:
        """``tenant``, of those that wait the one served least, is served next."""
        self._level = max(self._level, self.served(tenant))

    def charge(self, tenant: str, num_tokens: int) -> None:
        """``num_tokens`` are computed for ``tenant``; a negative number: they are not after all."""
        weight = self.weight(tenant)
        competing = self._competing + (0.0 if tenant in self._num_waiting else weight)
        self._served[tenant] = self.served(tenant) + num_tokens / weight
        self._level += num_tokens / competing

    def _forget(self) -> None:
        if len(self._served) > 2 * len(self._num_waiting) + FORGET_ABOVE:
            kept = self._num_waiting
            self._served = {who: n for who, n in self._served.items() if who in kept or n > self._level}
