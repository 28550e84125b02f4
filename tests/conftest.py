"""The same run each time: property tests draw their examples from a fixed seed, so that a red run speaks of the change
and not of luck. ``make explore`` draws fresh ones; what it finds becomes an ``@example``."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, database=None, print_blob=True)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile("same")

# They say how tests are run, and are read where they are imported; to a server they would be settings that it lacks.
TEST_VARIABLES = ("SESSILE_ALL_TRACES", "SESSILE_RECORDINGS", "SESSILE_SCHEMATHESIS_CASES", "SESSILE_SCREENSHOTS")


@pytest.fixture(scope="session", autouse=True)
def _only_settings_in_the_environment() -> Iterator[None]:
    hidden = {name: os.environ.pop(name) for name in TEST_VARIABLES if name in os.environ}
    yield
    os.environ.update(hidden)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no worker is left with one while the others have nothing to do."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
