"""Which scope each call needs. What is not named here needs ``infer``."""

from __future__ import annotations

from .api_key import Scope

OPEN_PATHS = frozenset({"/health", "/ready"})  # for probes that have no key; they tell nothing of anybody's work
_BY_PREFIX = (("/metrics", Scope.METRICS), ("/v1/cache/hit-rate", Scope.METRICS), ("/v1/cache/", Scope.ADMIN))


def scope_of_path(path: str) -> Scope | None:
    """What an HTTP path needs; None: nothing, not even a key."""
    if path in OPEN_PATHS:
        return None
    return next((scope for prefix, scope in _BY_PREFIX if path.startswith(prefix)), Scope.INFER)
