"""aiperf's multi-turn files: ``{"session_id", "turns": [{"text", "delay" ms, "output_length", "role"}]}``, one a line.

A single-turn line (``{"text", "output_length"}``) is a session of one turn. Leading turns of role ``system`` are the
system prompt. The answers are the server's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..workload.plan import Message, MessagesPrompt, SessionPlan, Turn
from .source import BadLines, Unusable, files_of, json_lines, number_of


def sniff(first: object) -> bool:
    """Whether a first object is of this format."""
    if not isinstance(first, dict):
        return False
    turns = first.get("turns")
    if isinstance(turns, list):
        return bool(turns) and isinstance(turns[0], dict) and ("text" in turns[0] or "texts" in turns[0])
    return "text" in first or "texts" in first


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """One session a line."""
    sessions: list[SessionPlan] = []
    for file in files_of(path, (".jsonl",)):
        for number, row in json_lines(file, bad):
            with bad.leaving_out(file, number):
                sessions.append(_session(row, f"{file.stem}-{number}"))
    return sessions


def _session(row: dict[str, Any], default_name: str) -> SessionPlan:
    rows = row.get("turns", [row])
    if not isinstance(rows, list) or not rows:
        raise Unusable("turns is not a list of turns")
    system: list[Message] = []
    turns: list[Turn] = []
    for entry in rows:
        text = _text(entry)
        if not turns and entry.get("role") == "system":
            system.append(Message("system", text))
            continue
        last = len(turns) - 1
        new = (*system, Message("user", text)) if not turns else (Message(str(entry.get("role") or "user"), text),)
        turns.append(
            Turn(
                prompt=MessagesPrompt(new),
                continues=last if turns else None,
                after=(last,) if turns else (),
                gap_s=(number_of(entry.get("delay")) or 0.0) / 1000 if turns else 0.0,
                output_tokens=_output(entry),
            )
        )
    if not turns:
        raise Unusable("a system prompt alone")
    arrival = (number_of(rows[0].get("timestamp")) or 0.0) / 1000
    return SessionPlan(session_id=str(row.get("session_id", default_name)), turns=tuple(turns), arrival_s=arrival)


def _text(entry: object) -> str:
    if not isinstance(entry, dict):
        raise Unusable("a turn that is not an object")
    if isinstance(entry.get("text"), str):
        return str(entry["text"])
    pieces = entry.get("texts")
    if isinstance(pieces, list) and pieces:
        flat = [piece if isinstance(piece, str) else "\n".join(piece.get("contents", ())) for piece in pieces]
        return "\n".join(flat)
    raise Unusable("a turn without text")


def _output(entry: dict[str, Any]) -> int | None:
    length = number_of(entry.get("output_length"))
    return None if length is None else max(1, int(length))
