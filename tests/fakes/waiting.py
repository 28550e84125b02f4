"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 120.0


def wait_until(condition: Callable[[], object], about: Callable[[], object] = str) -> None:
    """Return once ``condition`` holds; fail if it does not in two minutes, and say what ``about`` says then."""
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, f"it does not come to pass: {about()}"
        time.sleep(0.01)
