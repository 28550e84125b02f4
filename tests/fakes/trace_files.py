"""Trace files that a test writes, and what is read from them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from sessile.bench_agent.traces.formats import format_named, read_workload
from sessile.bench_agent.traces.source import BadLines
from sessile.bench_agent.workload.plan import MessagesPrompt, Turn, Workload


def lines(path: Path, rows: Iterable[object]) -> Path:
    """A file of one JSON value a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def workload(path: Path, *, skip: bool = False, form: str | None = None) -> Workload:
    """What is read; the format is recognised unless it is named."""
    return read_workload(path, BadLines(skip=skip), form)


def written(found: Workload, form: str, path: Path) -> Path:
    """A file of a workload, in a form that can be written."""
    write = format_named(form).write
    assert write is not None
    write(found, path)
    return path


def through(found: Workload, form: str, path: Path) -> Workload:
    """What is left of a workload that is written in a form and read as that again."""
    return workload(written(found, form, path), form=form)


def asked(turn: Turn) -> list[tuple[str, str]]:
    """The new messages of a turn: who says what."""
    assert isinstance(turn.prompt, MessagesPrompt)
    return [(message.role, message.content) for message in turn.prompt.messages]


def answered(turn: Turn) -> tuple[str, list[str]]:
    """The recorded answer: its text, and the names of its calls."""
    assert turn.recorded is not None
    return turn.recorded.content, [call.name for call in turn.recorded.tool_calls]
