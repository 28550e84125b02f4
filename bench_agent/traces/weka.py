"""Weka / AgentX traces: one JSON object a conversation, calls as block hashes, sub-agents nested.

A call has ``t`` (seconds), ``in`` and ``out`` (tokens), ``hash_ids`` (blocks of ``block_size`` tokens, 64 by default,
in a namespace of the file) and ``think_time``. A ``subagent`` entry's calls run beside those of other sub-agents; the
parent's next call waits for all that it sent. Times inside an entry are relative to it, or absolute in newer files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..workload.plan import BlocksPrompt, SessionPlan, Turn
from .source import BadLines, Unusable, files_of, json_rows, number_of

BLOCK_TOKENS = 64


def sniff(first: object) -> bool:
    """Whether a first object is of this format."""
    if isinstance(first, list):
        return bool(first) and sniff(first[0])
    if not isinstance(first, dict) or not isinstance(first.get("requests"), list) or not first["requests"]:
        return False
    call = first["requests"][0]
    return isinstance(call, dict) and "t" in call and ("in" in call or call.get("type") == "subagent")


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """One session an object."""
    sessions: list[SessionPlan] = []
    for file in files_of(path, (".json", ".jsonl")):
        for number, row in json_rows(file, bad):
            with bad.leaving_out(file, number):
                sessions.append(_ConversationReader(row, f"{file.stem}-{number}").session())
    return sessions


class _ConversationReader:
    """Makes turns of one conversation."""

    def __init__(self, row: dict[str, Any], default_name: str) -> None:
        self._row = row
        self._name = str(row.get("id", default_name))
        self._block = int(number_of(row.get("block_size")) or BLOCK_TOKENS)
        self._turns: list[Turn] = []
        self._ends: list[float] = []

    def session(self) -> SessionPlan:
        entries = self._row.get("requests")
        if not isinstance(entries, list):
            raise Unusable("no list of requests")
        last_main: int | None = None
        joined: list[int] = []  # last turns of sub-agents that the next main call waits for
        for entry in sorted(entries, key=_time):
            if entry.get("type") == "subagent":
                end = self._sub_agent(entry, last_main)
                joined += [] if end is None else [end]
            else:
                awaited = joined if last_main is None else [last_main, *joined]
                last_main = self._add(entry, _time(entry), tuple(awaited), "main")
                joined = []
        if not self._turns:
            raise Unusable("no calls")
        return SessionPlan(session_id=self._name, turns=tuple(self._turns))

    def _sub_agent(self, entry: dict[str, Any], sent_by: int | None) -> int | None:
        calls = entry.get("requests")
        if not isinstance(calls, list):
            raise Unusable("a subagent without requests")
        calls = sorted((call for call in calls if call.get("type") != "subagent"), key=_time)
        began = _time(entry)
        offset = began if calls and _time(calls[0]) < began else 0.0
        last = sent_by
        name = f"sub-{entry.get('agent_id', began)}"
        for call in calls:
            last = self._add(call, _time(call) + offset, () if last is None else (last,), name)
        return last if calls else None

    def _add(self, call: dict[str, Any], started: float, after: tuple[int, ...], agent: str) -> int:
        tokens, output = number_of(call.get("in")), number_of(call.get("out"))
        ids = call.get("hash_ids", [])
        if tokens is None or output is None or not isinstance(ids, list):
            raise Unusable("a call without in, out or a list of hash_ids")
        gap = number_of(call.get("think_time"))
        if gap is None:
            gap = started - max((self._ends[turn] for turn in after), default=started)
        prompt = BlocksPrompt(tuple(int(one) for one in ids), self._block, max(1, int(tokens)), self._name)
        self._turns.append(
            Turn(
                prompt=prompt,
                after=tuple(sorted(after)),
                gap_s=round(max(0.0, gap), 6) if after else 0.0,
                output_tokens=max(1, int(output)),
                agent=agent,
            )
        )
        self._ends.append(started + (number_of(call.get("api_time")) or 0.0))
        return len(self._turns) - 1


def _time(entry: object) -> float:
    stamp = number_of(entry.get("t")) if isinstance(entry, dict) else None
    if stamp is None:
        raise Unusable("a request without t")
    return stamp
