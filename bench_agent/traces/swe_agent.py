"""SWE-agent's ``.traj`` (``history`` and ``trajectory``) and mini-swe-agent's ``.traj.json`` (``messages``).

Where each step of the trajectory has its ``query``, that is what was sent (SWE-agent shortens old observations there);
else the history holds the conversation. How long each action ran is the gap: from the steps, or from the times of
mini-swe-agent's messages. What came after the last answer was not sent. Each of several ``attempts`` is a session.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ..workload.plan import Message, SessionPlan, Turn
from .lineage import WholeRequest, turns_of
from .messages import conversation_turns, messages_of, tools_of
from .rows import document
from .source import BadLines, Place, Unusable, files_of, number_of


def sniff(first: object) -> bool:
    """Whether a first value is of this format."""
    if not isinstance(first, dict):
        return False
    told = any(isinstance(first.get(key), list) for key in ("history", "trajectory", "attempts"))
    return told or ("messages" in first and ("trajectory_format" in first or _is_mini(first.get("info"))))


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """One session a file, or an attempt in it."""
    sessions: list[SessionPlan] = []
    for file in files_of(path, (".traj", ".traj.json")):
        with bad.leaving_out(Place(file, 1)):
            found = document(file)
            name = file.name.split(".")[0]
            attempts = found.get("attempts") if isinstance(found, dict) else None
            if isinstance(attempts, list) and attempts:
                sessions += [_session(one, f"{name}#{number}", bad.remarks) for number, one in enumerate(attempts)]
            else:
                sessions.append(_session(found, name, bad.remarks))
    return sessions


def _is_mini(about: object) -> bool:
    return isinstance(about, dict) and any(key in about for key in ("mini_version", "exit_status", "model_stats"))


def _session(told: Any, name: str, remarks: Counter[str]) -> SessionPlan:
    if not isinstance(told, dict):
        raise Unusable("not an object")
    steps = told.get("trajectory")
    steps = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    rows = told.get("history", told.get("messages"))
    if rows is not None and not isinstance(rows, list):
        raise Unusable("history or messages is not a list")
    rows = [row for row in rows or () if not (isinstance(row, dict) and row.get("role") == "exit")]
    if steps and all(isinstance(step.get("query"), list) and step["query"] for step in steps):
        turns = turns_of(_requests(steps, rows, remarks))
    elif rows:
        turns = _of_history(rows, steps, remarks)
    else:
        raise Unusable("neither history nor messages, nor a trajectory whose steps have their query")
    if not turns:
        raise Unusable("no message that asks for an answer")
    return SessionPlan(session_id=name, turns=turns, tools=tools_of(told.get("tools")))


def _of_history(rows: list[Any], steps: list[dict[str, Any]], remarks: Counter[str]) -> tuple[Turn, ...]:
    """Turns of the conversation, without what stands after its last answer."""
    demonstrated = [number for number, row in enumerate(rows, 1) if isinstance(row, dict) and row.get("is_demo")]
    given = max(demonstrated, default=0)
    messages: list[Message] = []
    start = 0
    for number, row in enumerate(rows, 1):
        messages += messages_of(row, remarks)
        start = len(messages) if number == given else start
    answered = [number for number, message in enumerate(messages, 1) if message.role == "assistant"]
    last = max((number for number in answered if number > start), default=len(messages))
    gaps = [number_of(step.get("execution_time")) or 0.0 for step in steps] or _gaps_by_times(rows)
    return conversation_turns(messages[:last], gaps, start)


def _gaps_by_times(rows: list[Any]) -> list[float]:
    """From the time of each answer to that of the last observation before the next one (mini-swe-agent)."""
    gaps: list[float] = []
    answered: float | None = None
    waited: float | None = None  # None: nothing was answered yet
    before = ""
    for row in rows:
        stamp, role = _stamp(row), str(row.get("role")) if isinstance(row, dict) else ""
        if role == "assistant":
            if waited is not None and before != "assistant":
                gaps.append(round(waited, 6))
            answered, waited = stamp, 0.0
        elif waited is not None and answered is not None and stamp is not None:
            waited = max(waited, stamp - answered)
        before = role
    return gaps


def _stamp(row: object) -> float | None:
    if not isinstance(row, dict):
        return None
    extra = row.get("extra")
    told = number_of(extra.get("timestamp")) if isinstance(extra, dict) else None
    return number_of(row.get("timestamp")) if told is None else told


def _requests(steps: list[dict[str, Any]], rows: list[Any], remarks: Counter[str]) -> list[WholeRequest]:
    """What each step sent; the last one's answer is the history's last, or what the step says."""
    requests: list[WholeRequest] = []
    waited = 0.0
    for step in steps:
        messages = tuple(message for row in step["query"] for message in messages_of(row, Counter()))
        requests.append(WholeRequest(messages=messages, delay_s=waited))
        waited = max(0.0, number_of(step.get("execution_time")) or 0.0)
    said = [message for row in rows for message in messages_of(row, remarks) if message.role == "assistant"]
    told = steps[-1].get("response") or steps[-1].get("thought")
    answer = said[-1] if said else Message("assistant", told if isinstance(told, str) else "")
    last = requests[-1]
    requests[-1] = WholeRequest(messages=last.messages, answer=answer, delay_s=last.delay_s)
    return requests
