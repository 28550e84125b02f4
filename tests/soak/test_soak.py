"""The short form of the soak. The long one is ``make soak``; see docs/reliability.md."""

from __future__ import annotations

import pytest
from soak import soak

pytestmark = pytest.mark.slow

SECONDS = 180.0


@pytest.mark.timeout(600)
def test_three_minutes_of_forty_sessions_leave_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    report = soak(SECONDS, sessions=40, seed=1, progress=lambda line: None)
    with capsys.disabled():
        print("\n".join(["", *report.lines()]))
    assert not report.complaints()
    assert sum(report.actions.values()) > 200
    assert report.tokens_checked > 0
