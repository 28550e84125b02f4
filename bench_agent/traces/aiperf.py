"""aiperf's multi-turn files: ``{"session_id", "turns": [{"text", "delay" ms, "output_length", "role"}]}``, one a line.

Lines of one session are one conversation. A single-turn line (``{"text", "output_length"}``) is a session of one
turn; those of one ``session_id`` are sent one after the other, each by itself. Leading turns of role ``system`` are the
system prompt; a turn of the assistant is the answer to the one before it, else the answers are the server's own.
Without ``delay`` the gap is the time since the turn before it started, where both have a ``timestamp`` (ms).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from ..workload.plan import Message, MessagesPrompt, SessionPlan, Turn
from .lineage import since_the_first
from .messages import answer_tokens, joined_answers
from .rows import objects
from .source import BadLines, Unusable, files_of, name_of, number_of, tokens_of, wait_of

_PICTURES = ("image", "images", "audio", "audios", "video", "videos")


def sniff(first: object) -> bool:
    """Whether a first value is of this format."""
    if not isinstance(first, dict):
        return False
    turns = first.get("turns")
    if isinstance(turns, list):
        return bool(turns) and isinstance(turns[0], dict) and ("text" in turns[0] or "texts" in turns[0])
    return "text" in first or "texts" in first


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """One session for each session id; a line without one is a session."""
    found: dict[str, _SessionReader] = {}
    for file in files_of(path, (".jsonl", ".json")):
        for place, row in objects(file, bad):
            with bad.leaving_out(place):
                name = name_of(row, ("session_id",), place.session_name)
                reader = found.get(name, _SessionReader(bad.remarks))
                for entry in _entries(row):
                    reader.take(entry, continues="turns" in row)
                found[name] = reader
    return since_the_first((reader.session(name), reader.began_at) for name, reader in found.items())


def _entries(row: dict[str, Any]) -> list[Any]:
    rows = row.get("turns", [row])
    if not isinstance(rows, list) or not rows:
        raise Unusable("turns is not a list of turns")
    for entry in rows:
        if not isinstance(entry, dict):
            raise Unusable("a turn that is not an object")
        _text(entry)
        wait_of(entry, "delay", 0.001)
        tokens_of(entry, "output_length", least=1)
    if not any(entry.get("role") not in ("system", "assistant") for entry in rows):
        raise Unusable("a system prompt alone")
    return rows


class _SessionReader:
    """Makes turns of the entries of one session."""

    def __init__(self, remarks: Counter[str]) -> None:
        self._remarks = remarks
        self._system: list[Message] = []
        self._turns: list[Turn] = []
        self._stamp: float | None = None
        self.began_at: float | None = None

    def session(self, name: str) -> SessionPlan:
        """What was read."""
        return SessionPlan(session_id=name, turns=tuple(self._turns))

    def take(self, entry: dict[str, Any], *, continues: bool) -> None:
        """A turn, which goes on with the conversation or stands by itself. Raises Unusable."""
        self._count_pictures(entry)
        role, text = str(entry.get("role") or "user"), _text(entry)
        if role == "assistant" and self._turns and continues:
            self._answered(Message("assistant", text))
            return
        if not self._turns and role == "system":
            self._system.append(Message("system", text))
            return
        last = len(self._turns) - 1
        alone = not self._turns or not continues
        new = (*self._system, Message(role, text)) if alone else (Message(role, text),)
        stamp = number_of(entry.get("timestamp"))
        self._turns.append(
            Turn(
                prompt=MessagesPrompt(new),
                continues=None if alone else last,
                after=(last,) if self._turns else (),
                gap_s=self._gap(entry, stamp) if self._turns else 0.0,
                output_tokens=tokens_of(entry, "output_length", least=1),
            )
        )
        self._stamp = stamp
        if self.began_at is None and stamp is not None:
            self.began_at = stamp / 1000

    def _gap(self, entry: dict[str, Any], stamp: float | None) -> float:
        told = wait_of(entry, "delay", 0.001)
        if told is not None:
            return told
        return 0.0 if stamp is None or self._stamp is None else round(max(0.0, stamp - self._stamp) / 1000, 6)

    def _answered(self, answer: Message) -> None:
        last = self._turns[-1]
        recorded = joined_answers(last.recorded, answer)
        tokens = last.output_tokens or answer_tokens(recorded)
        self._turns[-1] = msgspec.structs.replace(last, recorded=recorded, output_tokens=tokens)

    def _count_pictures(self, entry: dict[str, Any]) -> None:
        for key in _PICTURES:
            if entry.get(key):
                self._remarks[f"{key.rstrip('s')} parts"] += 1


def _text(entry: dict[str, Any]) -> str:
    if isinstance(entry.get("text"), str):
        return str(entry["text"])
    pieces = entry.get("texts")
    if isinstance(pieces, list) and pieces:
        flat = [piece if isinstance(piece, str) else "\n".join(piece.get("contents", ())) for piece in pieces]
        return "\n".join(flat)
    raise Unusable("a turn without text (pictures and sounds alone cannot be sent)")
