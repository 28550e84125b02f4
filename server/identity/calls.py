"""Which scope each call needs. What is not named here needs ``infer``."""

from __future__ import annotations

from .api_key import Scope

_DASHBOARD_FILES = ("index.html", "dashboard.css", "dashboard.js", "charts.js", "sessions.js", "words.js", "icon.svg")
OPEN_PATHS = frozenset(  # for probes and browsers that have no key yet; they tell nothing of anybody's work
    {"/health", "/ready", "/", *(f"/dashboard/{name}" for name in _DASHBOARD_FILES)}
)
_BY_PREFIX = (
    ("/metrics", Scope.METRICS),
    ("/v1/cache/hit-rate", Scope.METRICS),
    ("/v1/cache/", Scope.ADMIN),
    ("/dashboard/", Scope.ADMIN),
)


def scope_of_path(path: str) -> Scope | None:
    """What an HTTP path needs; None: nothing, not even a key."""
    if path in OPEN_PATHS:
        return None
    return next((scope for prefix, scope in _BY_PREFIX if path.startswith(prefix)), Scope.INFER)
