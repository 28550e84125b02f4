"""Fair shares between tenants: who was served least goes first.

Each tenant has a counter of the tokens computed for it, charged when a turn starts to run (its uncached prompt) and as
it decodes. A tenant that comes back from idleness starts no lower than whoever was served last: idle time gains no
credit. (Virtual token counters: Sheng et al., "Fairness in Serving Large Language Models", 2024; the floor is the
virtual time of start-time fair queueing, Goyal et al., 1996, which needs no search among the tenants.)
"""

from __future__ import annotations

FORGET_ABOVE = 1024  # idle tenants whose counters are looked through for what can be forgotten


class FairShares:
    """Counters of one class of turns. A tenant is active while it has turns that wait or run."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._num_turns: dict[str, int] = {}  # of active tenants
        self._floor = 0.0  # where those start who come back

    @property
    def num_active(self) -> int:
        return len(self._num_turns)

    def served(self, tenant: str) -> float:
        """Tokens computed for ``tenant``, as far as they count against it."""
        return self._served.get(tenant, self._floor)

    def join(self, tenant: str) -> None:
        """One more turn of ``tenant``."""
        if tenant not in self._num_turns:
            self._served[tenant] = max(self.served(tenant), self._floor)
        self._num_turns[tenant] = self._num_turns.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        """One turn of ``tenant`` less. What it was served beyond others is remembered."""
        self._num_turns[tenant] -= 1
        if not self._num_turns[tenant]:
            del self._num_turns[tenant]
            self._forget()

    def choose(self, tenant: str) -> None:
        """Note that ``tenant``, of those that wait the one served least, is served next."""
        self._floor = max(self._floor, self.served(tenant))

    def charge(self, tenant: str, num_tokens: int) -> None:
        """``num_tokens`` are computed for ``tenant``; a negative number: they are not after all."""
        self._served[tenant] = self.served(tenant) + num_tokens

    def _forget(self) -> None:
        if not self._num_turns:  # nobody to be fair to
            self._served.clear()
            self._floor = 0.0
        elif len(self._served) > 2 * len(self._num_turns) + FORGET_ABOVE:
            kept = self._num_turns
            self._served = {who: n for who, n in self._served.items() if who in kept or n > self._floor}
