"""What a person sees while the server starts: a live bar on a terminal, plain lines of the log elsewhere."""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

logger = logging.getLogger(__name__)


class StartProgress(Protocol):
    """Told of each stage: ``fraction`` runs from 0 to 1 within it. A context manager: open while the server starts."""

    def __call__(self, stage: str, fraction: float) -> None: ...

    def __enter__(self) -> StartProgress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...


class LoggedProgress:
    """One line a stage."""

    def __init__(self) -> None:
        self._stage = ""

    def __call__(self, stage: str, fraction: float) -> None:
        if stage != self._stage:
            self._stage = stage
            logger.info("%s", stage)

    def __enter__(self) -> LoggedProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        return None


class TerminalProgress:
    """A bar with the present stage."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._bar: RichProgress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: TaskID = self._bar.add_task("starting", total=1.0)

    def __call__(self, stage: str, fraction: float) -> None:
        self._bar.update(self._task, description=stage, completed=fraction)

    def __enter__(self) -> TerminalProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self._bar.stop()


def start_progress() -> StartProgress:
    """The right one for the standard error."""
    return TerminalProgress() if sys.stderr.isatty() else LoggedProgress()
