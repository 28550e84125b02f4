"""The short form of the overload; its figures are not judged here, since a test must not depend on speed.

The long one, which judges them, is ``make overload``; see docs/reliability.md.
"""

from __future__ import annotations

import pytest
from overload import PLACES, overload

pytestmark = pytest.mark.slow


@pytest.mark.timeout(300)
def test_four_times_too_many_turns_are_refused_and_the_others_answered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = overload(calm_s=3.0, overload_s=6.0, num_tokens=40)
    with capsys.disabled():
        print("\n".join(["", *report.lines()]))
    assert report.other == []
    assert report.refused_s
    assert report.without_retry_time == 0
    assert len(report.admitted_s) >= PLACES, "those that were let in are answered"
    assert report.answers_again, "turns that are sent later are answered"
