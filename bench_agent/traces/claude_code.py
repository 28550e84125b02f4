"""Claude Code's session files: a tree of lines by ``uuid`` and ``parentUuid``, sub-agents as side chains.

One call of the API may be several lines with one ``message.id``; the results of its parallel tools may hang on
different ones of them. Two calls below one line are a fork, as when the user goes back. After a compaction the
conversation starts anew from its summary. Lines that were not sent to the model (the program's own, failed calls) only
link others. The files hold neither the system prompt nor the tools: their size is what the first call's usage counts
beyond the messages.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from ..workload.plan import Message, MessagesPrompt, SessionPlan, Turn
from .lineage import since_the_first
from .messages import answer_tokens, joined_answers, messages_of, unrecorded_tokens
from .rows import objects
from .source import BadLines, Place, Unusable, files_of, name_of, seconds_of, tokens_of

_INPUT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class _Line(msgspec.Struct, frozen=True):
    """One line. ``call`` is the id of the API's message, for the assistant's lines; no messages: it only links."""

    place: Place
    uuid: str
    parent: str | None
    messages: tuple[Message, ...]
    side: bool
    agent: str | None
    stamp: float | None
    call: str | None
    input_tokens: int
    output_tokens: int


def sniff(first: object) -> bool:
    """Whether a first value is of this format."""
    return isinstance(first, dict) and (("sessionId" in first and "uuid" in first) or "leafUuid" in first)


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """One session for each session id, its sub-agents' files in the folder included."""
    sessions: dict[str, dict[str, _Line]] = {}
    beside = sorted((path.with_suffix("") / "subagents").glob("*.jsonl")) if path.is_file() else []
    if beside:
        bad.remarks["files of sub-agents beside this one (name the folder to read them too)"] += len(beside)
    for file in files_of(path, (".jsonl",)):
        stamp: float | None = None
        for place, row in objects(file, bad):
            with bad.leaving_out(place):
                line = _line(place, row, stamp, bad.remarks)
                if line is not None:
                    name = name_of(row, ("sessionId",), file.stem)
                    sessions.setdefault(name, {}).setdefault(line.uuid, line)
                    stamp = line.stamp
    return since_the_first(_session(name, list(lines.values()), bad) for name, lines in sessions.items())


def _session(name: str, lines: list[_Line], bad: BadLines) -> tuple[SessionPlan, float | None]:
    """A session, and when it began."""
    stamps = [line.stamp for line in lines if line.stamp is not None]
    return _SessionReader(_rooted(lines, bad), bad.remarks).session(name), min(stamps, default=None)


def _line(place: Place, row: dict[str, Any], before: float | None, remarks: Counter[str]) -> _Line | None:
    """A line of the tree; None for one outside of it. ``before``: the time of the line before, for one without."""
    kind = row.get("type")
    body: Any = row.get("message")
    said = kind in ("user", "assistant")
    if said and (not isinstance(row.get("uuid"), str) or not isinstance(body, dict)):
        raise Unusable("a message line without uuid or message")
    if not isinstance(row.get("uuid"), str):
        return None
    sent = said and not row.get("isApiErrorMessage") and body.get("model") != "<synthetic>"
    if kind == "attachment":
        remarks["attachments of Claude Code's"] += 1
    body = body if sent else {}
    usage: dict[str, Any] = body["usage"] if isinstance(body.get("usage"), dict) else {}
    anew = row.get("subtype") == "compact_boundary" or bool(row.get("isCompactSummary"))
    parent = row.get("parentUuid")
    stamp = seconds_of(row.get("timestamp"))
    return _Line(
        place=place,
        uuid=row["uuid"],
        parent=parent if isinstance(parent, str) and not anew else None,
        messages=messages_of({"role": kind} | body, remarks) if sent else (),
        side=bool(row.get("isSidechain")),
        agent=str(row["agentId"]) if row.get("agentId") else None,
        stamp=before if stamp is None else stamp,
        call=str(body.get("id") or row["uuid"]) if sent and kind == "assistant" else None,
        input_tokens=sum(tokens_of(usage, part) or 0 for part in _INPUT_COUNTS),
        output_tokens=tokens_of(usage, "output_tokens") or 0,
    )


def _rooted(lines: list[_Line], bad: BadLines) -> list[_Line]:
    """The lines by their times, parents first; one whose parents lead in a circle is a bad line, and has none."""
    by_name = {line.uuid: line for line in lines}
    order: dict[str, tuple[float, int]] = {}  # when it can have been written at the earliest, and its depth
    circles: set[str] = set()
    for line in lines:
        chain: dict[str, None] = {}
        at: str | None = line.uuid
        while at is not None and at in by_name and at not in order and at not in chain:
            chain[at] = None
            at = by_name[at].parent
        if at is not None and at in chain:
            circles.add(at)
            bad.found(by_name[at].place, "its parents lead back to it (parentUuid)")
        for name in reversed(chain):
            time, depth = order.get(by_name[name].parent or "", (0.0, 0))
            order[name] = max(time, by_name[name].stamp or 0.0), depth + 1
    rooted = [msgspec.structs.replace(line, parent=None) if line.uuid in circles else line for line in lines]
    return sorted(rooted, key=lambda line: order[line.uuid])


def _answer(lines: list[_Line]) -> Message:
    """What the lines of one call say together."""
    recorded = Message("assistant")
    for line in lines:
        for message in line.messages:
            recorded = joined_answers(recorded, message)
    return recorded


class _SessionReader:
    """Makes turns of the lines of one session."""

    def __init__(self, lines: list[_Line], remarks: Counter[str]) -> None:
        self._remarks = remarks
        self._lines = {line.uuid: line for line in lines}
        self._calls: dict[str, list[_Line]] = {}
        self._below: dict[str, list[_Line]] = {}
        for line in lines:
            if line.call is not None:
                self._calls.setdefault(line.call, []).append(line)
            if line.parent is not None:
                self._below.setdefault(line.parent, []).append(line)
        self._roots: dict[str, str] = {}
        self._turn_of_call: dict[str, int] = {}
        self._turns: list[Turn] = []
        self._ended: list[float | None] = []
        self._last_main: int | None = None
        self._last_of_side: dict[str, int] = {}  # a side chain -> its last turn, while nobody waited for it

    def session(self, name: str) -> SessionPlan:
        """What the calls were, in the order of their first lines."""
        missing = 0
        for call, lines in self._calls.items():
            self._add(call, lines)
            counted = max(line.input_tokens for line in lines)
            if len(self._turns) == 1 and counted:
                missing = unrecorded_tokens(counted, self._turns[0])
        return SessionPlan(session_id=name, turns=tuple(self._turns), unrecorded_tokens=missing)

    def _add(self, call: str, lines: list[_Line]) -> None:
        first = lines[0]
        messages, continues, asked = self._context(first)
        recorded = _answer(lines)
        output = max(line.output_tokens for line in lines) or answer_tokens(recorded) or 1
        if not messages:
            self._go_on(call, continues, recorded, output)
            return
        after = self._awaited(first, continues)
        ends = [end for turn in after if (end := self._ended[turn]) is not None]
        gap = max(0.0, asked - max(ends)) if asked is not None and ends else 0.0
        chain = self._chain_of(first)
        self._turn_of_call[call] = len(self._turns)
        self._turns.append(
            Turn(
                prompt=MessagesPrompt(messages),
                continues=continues,
                after=after,
                gap_s=round(gap, 6),
                output_tokens=output,
                recorded=recorded,
                agent=f"sub-{(first.agent or chain)[:8]}" if first.side else "main",
            )
        )
        self._ended.append(lines[-1].stamp)
        if first.side:
            self._last_of_side[chain] = len(self._turns) - 1
        else:
            self._last_main = len(self._turns) - 1
            self._last_of_side.clear()

    def _go_on(self, call: str, continues: int | None, recorded: Message, output: int) -> None:
        """A call that nothing new was asked before: the answer goes on; one to nothing in the file cannot be sent."""
        if continues is None:
            self._remarks["answers to what the file does not hold"] += 1
            return
        self._turn_of_call[call] = continues
        turn = self._turns[continues]
        self._turns[continues] = msgspec.structs.replace(
            turn,
            recorded=joined_answers(turn.recorded, recorded),
            output_tokens=(turn.output_tokens or 0) + output,
        )

    def _context(self, line: _Line) -> tuple[tuple[Message, ...], int | None, float | None]:
        """New messages, the turn continued, and when the last of the messages was written."""
        found: list[_Line] = []
        asked: float | None = None
        at = self._parent(line)
        while at is not None and (at.call is None or at.call == line.call):
            if at.call is None and at.messages:
                found.append(at)
                asked = at.stamp if asked is None else asked
            at = self._parent(at)
        messages = [message for above in reversed(found) for message in above.messages]
        continues = None if at is None or at.call is None else self._turn_of_call.get(at.call)
        if at is not None and at.call is not None and continues is not None:
            messages = self._with_all_results(at.call, continues, messages)
        return tuple(messages), continues, asked

    def _with_all_results(self, call: str, turn: int, messages: list[Message]) -> list[Message]:
        """The results of all tools of a call, in its order: those of parallel ones hang on lines beside the chain."""
        answer = self._turns[turn].recorded
        order = [one.id for one in answer.tool_calls] if answer is not None else []
        results = {message.tool_call_id: message for message in messages if message.tool_call_id in order}
        if not results:
            return messages
        for line in self._calls[call]:
            for below in self._below.get(line.uuid, ()):
                for message in below.messages if below.call is None else ():
                    if message.tool_call_id in order:
                        results.setdefault(message.tool_call_id, message)
        others = [message for message in messages if message.tool_call_id not in results]
        return [*(results[one] for one in order if one in results), *others]

    def _parent(self, line: _Line) -> _Line | None:
        """The line above, within the chain of the main agent or of one sub-agent."""
        above = None if line.parent is None else self._lines.get(line.parent)
        return above if above is not None and above.side == line.side else None

    def _chain_of(self, line: _Line) -> str:
        """The agent's id, else the first line above all."""
        if line.agent is not None:
            return line.agent
        passed: list[str] = []
        at = line
        while at.uuid not in self._roots and (above := self._parent(at)) is not None:
            passed.append(at.uuid)
            at = above
        root = self._roots.get(at.uuid, at.uuid)
        self._roots.update(dict.fromkeys(passed, root))
        return root

    def _awaited(self, line: _Line, continues: int | None) -> tuple[int, ...]:
        waits: set[int] = set() if continues is None else {continues}
        if line.side:
            if continues is None and self._last_main is not None:
                waits.add(self._last_main)
        else:
            waits.update(self._last_of_side.values())
            if self._last_main is not None:
                waits.add(self._last_main)
        return tuple(sorted(waits))
