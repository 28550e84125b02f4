"""A pytest fixture: `prompt_lint` collects the requests that a test sends and fails on what breaks the cache.

Turn it on with `pytest_plugins = ["sessile.prompt_lint.pytest_plugin"]` in a top-level conftest.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .engine import TraceLinter, TraceOptions
from .findings import Finding, Severity
from .readers.requests import request_from
from .report.plain import place_of


class PromptRecorder:
    """Takes request bodies in the order in which they are sent."""

    def __init__(self, options: TraceOptions | None = None) -> None:
        self._linter = TraceLinter(options)
        self._count = 0

    def record(self, body: dict[str, Any], *, session: str | None = None) -> None:
        """Take one body. Raises: UnusableInput when it is none."""
        request = request_from("test", 0, body)
        request.index, request.session = self._count, session
        self._count += 1
        self._linter.feed(request)

    def findings(self, at_least: Severity = Severity.WARNING) -> list[Finding]:
        """What was found so far."""
        return [f for f in self._linter.findings() if f.severity >= at_least]


@pytest.fixture
def prompt_lint() -> Iterator[PromptRecorder]:
    """Record bodies with `prompt_lint.record(body)`; the test fails at its end on warnings and errors."""
    recorder = PromptRecorder()
    yield recorder
    found = recorder.findings()
    if found:
        lines = [f"{f.severity.word} {f.rule} {place_of(f.location)}: {f.message}" for f in found]
        pytest.fail("prompt-lint:\n" + "\n".join(lines), pytrace=False)
