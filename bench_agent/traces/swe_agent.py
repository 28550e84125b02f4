"""SWE-agent's ``.traj`` (``history`` and ``trajectory``) and mini-swe-agent's ``.traj.json`` (``messages``).

The history holds the conversation; the trajectory's steps say how long each action ran, which is the gap.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import TraceError
from ..workload.plan import SessionPlan
from .messages import conversation_turns, message_of
from .source import BadLines, Unusable, files_of, json_document, number_of


def sniff(first: object) -> bool:
    """Whether a first object is of this format."""
    if not isinstance(first, dict):
        return False
    return isinstance(first.get("history"), list) or ("messages" in first and "trajectory_format" in first)


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """One session a file."""
    sessions: list[SessionPlan] = []
    for file in files_of(path, (".traj", ".traj.json")):
        with bad.leaving_out(file, 1):
            sessions.append(_session(_document(file), file.name.split(".")[0]))
    return sessions


def _document(file: Path) -> Any:
    try:
        return json_document(file)
    except TraceError as error:
        raise Unusable(error.reason) from error


def _session(document: Any, name: str) -> SessionPlan:
    if not isinstance(document, dict):
        raise Unusable("not an object")
    rows = document.get("history", document.get("messages"))
    if not isinstance(rows, list):
        raise Unusable("neither history nor messages")
    rows = [row for row in rows if not (isinstance(row, dict) and row.get("role") == "exit")]
    turns = conversation_turns([message_of(row) for row in rows], _gaps(document.get("trajectory")))
    if not turns:
        raise Unusable("no message that asks for an answer")
    return SessionPlan(session_id=name, turns=turns)


def _gaps(trajectory: object) -> list[float]:
    if not isinstance(trajectory, list):
        return []
    return [number_of(step.get("execution_time")) or 0.0 for step in trajectory if isinstance(step, dict)]
