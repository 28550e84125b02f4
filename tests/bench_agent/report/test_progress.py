from __future__ import annotations

import io

from rich.console import Console

from sessile.bench_agent.metrics.records import TurnRecord, TurnStatus
from sessile.bench_agent.report.progress import LiveProgress


def test_progress_shows_turns_failures_and_recent_numbers() -> None:
    shown = io.StringIO()
    with LiveProgress("load", 3, Console(file=shown, force_terminal=True, width=140)) as progress:
        progress.turn(TurnRecord(repeat=0, session="s", turn=0, first=True, arrivals_s=(9.0,), completion_tokens=5))
        progress.turn(TurnRecord(repeat=0, session="s", turn=1, arrivals_s=(0.25,), completion_tokens=5))
        progress.turn(TurnRecord(repeat=0, session="s", turn=2, status=TurnStatus.ERROR))
    text = shown.getvalue()
    assert "3/3" in text and "TTFT 250 ms" in text and "1 failed" in text and "tok/s" in text


def test_progress_is_silent_off_a_terminal() -> None:
    shown = io.StringIO()
    with LiveProgress("load", 3, Console(file=shown)) as progress:
        progress.turn(TurnRecord(repeat=0, session="s", turn=0))
    assert shown.getvalue().strip() == ""
