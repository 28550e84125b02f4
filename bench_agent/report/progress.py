"""What a user sees while a load runs."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..metrics.records import TurnRecord, TurnStatus
from .terminal import terminal

_RECENT = 200


class LiveProgress:
    """A line on standard error: turns done, failures, recent median TTFT and output rate. Silent off a terminal."""

    def __init__(self, label: str, total_turns: int | None, console: Console | None = None) -> None:
        console = console or terminal(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            refresh_per_second=2,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(label, total=total_turns, numbers="")
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._tokens = 0
        self._failed = 0
        self._began = time.monotonic()

    def __enter__(self) -> LiveProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def turn(self, record: TurnRecord) -> None:
        """A turn has ended."""
        self._tokens += record.output_tokens
        self._failed += record.status in (TurnStatus.ERROR, TurnStatus.UNREACHABLE)
        if record.ttft_s is not None and not record.first:
            self._recent.append(record.ttft_s)
        self._progress.update(self._task, advance=1, numbers=self._numbers())

    def _numbers(self) -> str:
        rate = self._tokens / max(time.monotonic() - self._began, 1e-9)
        parts = [f"{rate:,.0f} tok/s"]
        if self._recent:
            parts.insert(0, f"TTFT {sorted(self._recent)[len(self._recent) // 2] * 1000:,.0f} ms")
        if self._failed:
            parts.append(f"{self._failed} failed")
        return " · ".join(parts)
