"""Claude Code's session files: a tree of lines by ``uuid`` and ``parentUuid``, sub-agents as side chains.

One call of the API may be several lines with one ``message.id``. Two calls below one line are a fork, as when the user
goes back. After a compaction the conversation starts anew from its summary. The files hold neither the system prompt
nor the tools: their size is what the first call's usage counts beyond the messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..workload.plan import Message, MessagesPrompt, SessionPlan, Turn
from ..workload.text import estimated_tokens
from .messages import answer_tokens, message_of
from .source import BadLines, Unusable, files_of, json_lines, seconds_of


class _Line(msgspec.Struct, frozen=True):
    """One message line. ``call`` is the id of the API's message, for the assistant's lines."""

    uuid: str
    parent: str | None
    message: Message
    side: bool
    stamp: float | None
    call: str | None
    input_tokens: int
    output_tokens: int


def sniff(first: object) -> bool:
    """Whether a first object is of this format."""
    return isinstance(first, dict) and "sessionId" in first and ("uuid" in first or "leafUuid" in first)


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """One session for each session id, its sub-agents' files included."""
    sessions: dict[str, list[_Line]] = {}
    for file in files_of(path, (".jsonl",)):
        for number, row in json_lines(file, bad):
            if row.get("type") not in ("user", "assistant") or row.get("isMeta"):
                continue
            with bad.leaving_out(file, number):
                sessions.setdefault(str(row.get("sessionId", file.stem)), []).append(_line(row))
    return [_SessionReader(lines).session(name) for name, lines in sessions.items()]


def _line(row: dict[str, Any]) -> _Line:
    body = row.get("message")
    if not isinstance(row.get("uuid"), str) or not isinstance(body, dict):
        raise Unusable("a message line without uuid or message")
    usage = body.get("usage") or {}
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return _Line(
        uuid=row["uuid"],
        parent=row.get("parentUuid"),
        message=message_of(body),
        side=bool(row.get("isSidechain")),
        stamp=seconds_of(row.get("timestamp")),
        call=str(body.get("id") or row["uuid"]) if body.get("role") == "assistant" else None,
        input_tokens=sum(int(usage.get(part) or 0) for part in parts),
        output_tokens=int(usage.get("output_tokens") or 0),
    )


class _SessionReader:
    """Makes turns of the lines of one session, in the order of the file."""

    def __init__(self, lines: list[_Line]) -> None:
        self._lines = {line.uuid: line for line in sorted(lines, key=lambda line: line.stamp or 0.0)}
        self._turn_of_call: dict[str, int] = {}
        self._turns: list[Turn] = []
        self._ended: list[float | None] = []
        self._last_main: int | None = None
        self._last_of_side: dict[str, int] = {}  # root of a side chain -> its last turn, while nobody waited for it

    def session(self, name: str) -> SessionPlan:
        missing = 0
        for line in self._lines.values():
            if line.call is None:
                continue
            if line.call in self._turn_of_call:
                self._extend(self._turn_of_call[line.call], line)
                continue
            self._add(line)
            if len(self._turns) == 1 and line.input_tokens:
                messages = self._turns[0].prompt.messages  # type: ignore[union-attr]
                missing = max(0, line.input_tokens - sum(estimated_tokens(message.content) for message in messages))
        return SessionPlan(session_id=name, turns=tuple(self._turns), unrecorded_tokens=missing)

    def _add(self, line: _Line) -> None:
        messages, continues, root, asked = self._context(line)
        after = self._awaited(line, root, continues)
        ends = [end for turn in after if (end := self._ended[turn]) is not None]
        gap = max(0.0, asked - max(ends)) if asked is not None and ends else 0.0
        assert line.call is not None
        self._turn_of_call[line.call] = len(self._turns)
        self._turns.append(
            Turn(
                prompt=MessagesPrompt(messages),
                continues=continues,
                after=after,
                gap_s=round(gap, 6),
                output_tokens=line.output_tokens or answer_tokens(line.message),
                recorded=line.message,
                agent=f"sub-{root[:8]}" if line.side else "main",
            )
        )
        self._ended.append(line.stamp)
        if line.side:
            self._last_of_side[root] = len(self._turns) - 1
        else:
            self._last_main = len(self._turns) - 1
            self._last_of_side.clear()

    def _extend(self, turn: int, line: _Line) -> None:
        before = self._turns[turn].recorded or Message("assistant")
        text = "\n".join(piece for piece in (before.content, line.message.content) if piece)
        recorded = Message("assistant", text, before.tool_calls + line.message.tool_calls)
        output = line.output_tokens or answer_tokens(recorded)
        self._turns[turn] = msgspec.structs.replace(self._turns[turn], recorded=recorded, output_tokens=output)
        self._ended[turn] = line.stamp

    def _context(self, line: _Line) -> tuple[tuple[Message, ...], int | None, str, float | None]:
        """New messages, the turn continued, the root of the chain, and when the last of the messages was written."""
        messages: list[Message] = []
        asked: float | None = None
        at = line
        while at.parent is not None and at.parent in self._lines:
            at = self._lines[at.parent]
            if at.call is not None:
                if at.call == line.call:
                    continue
                root = self._root(at)
                return tuple(reversed(messages)), self._turn_of_call.get(at.call), root, asked
            messages.append(at.message)
            asked = at.stamp if asked is None else asked
        return tuple(reversed(messages)), None, at.uuid, asked

    def _root(self, line: _Line) -> str:
        while line.parent is not None and line.parent in self._lines:
            line = self._lines[line.parent]
        return line.uuid

    def _awaited(self, line: _Line, root: str, continues: int | None) -> tuple[int, ...]:
        waits: set[int] = set() if continues is None else {continues}
        if line.side:
            if continues is None and self._last_main is not None:
                waits.add(self._last_main)
        else:
            waits.update(self._last_of_side.values())
            if self._last_main is not None:
                waits.add(self._last_main)
        return tuple(sorted(waits))
