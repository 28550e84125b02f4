"""The same run each time: property tests draw their examples from a fixed seed, so that a red run speaks of the change
and not of luck. ``make explore`` draws fresh ones; what it finds becomes an ``@example``."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("same", derandomize=True, database=None, print_blob=True)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile("same")
