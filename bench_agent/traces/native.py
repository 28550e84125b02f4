"""The harness's own form: a first line that names the workload, then one session a line, as in ``workload/plan.py``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import BenchError
from ..workload.plan import SessionPlan, Workload, check_session
from .rows import objects
from .source import BadLines, files_of

MARK = "sessile-workload-1"


def sniff(first: object) -> bool:
    """Whether a first value is of this format."""
    return isinstance(first, dict) and first.get("workload") == MARK


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """Sessions in the order of the lines."""
    sessions: list[SessionPlan] = []
    for file in files_of(path, (".jsonl",)):
        for place, row in objects(file, bad):
            if sniff(row):
                continue
            try:
                plan = msgspec.convert(row, SessionPlan, strict=True)
                check_session(plan)
            except (msgspec.ValidationError, BenchError) as error:
                bad.found(place, str(error))
                continue
            sessions.append(plan)
    return sessions


def write(workload: Workload, path: Path) -> None:
    """One file that ``read`` gives back exactly."""
    head = {"workload": MARK, "name": workload.name, "from": workload.format, "seed": workload.seed}
    lines = [msgspec.json.encode(head), *(msgspec.json.encode(session) for session in workload.sessions)]
    path.write_bytes(b"\n".join(lines) + b"\n")
