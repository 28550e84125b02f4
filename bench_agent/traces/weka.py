"""Weka / AgentX traces: one JSON object a conversation, calls as block hashes, sub-agents nested.

A call has ``t`` (seconds), ``in`` and ``out`` (tokens), ``hash_ids`` (blocks of ``block_size`` tokens, 64 by default,
in a namespace of the file, or of all with ``"hash_id_scope": "global"``) and ``think_time``. A ``subagent`` entry's
calls run beside those of other sub-agents; the parent's next call waits for all that it sent, but for those that were
launched without waiting (``"status": "async_launched"``). Times inside an entry are relative to it, or absolute in
newer files: what one entry of a file shows holds for all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..workload.plan import BlocksPrompt, SessionPlan, Turn
from .rows import objects
from .source import BadLines, Unusable, files_of, name_of, number_of, tokens_of, wait_of

BLOCK_TOKENS = 64
_MOST_IDS = 2_000_000
_NOT_AWAITED = "async_launched"


def sniff(first: object) -> bool:
    """Whether a first value is of this format."""
    if isinstance(first, list):
        return bool(first) and sniff(first[0])
    if not isinstance(first, dict) or not isinstance(first.get("requests"), list) or not first["requests"]:
        return False
    call = first["requests"][0]
    told = isinstance(call, dict) and "t" in call
    return told and (any(key in call for key in ("in", "input_length")) or call.get("type") == "subagent")


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """One session an object."""
    sessions: list[SessionPlan] = []
    for file in files_of(path, (".json", ".jsonl")):
        for place, row in objects(file, bad):
            with bad.leaving_out(place):
                sessions.append(_ConversationReader(row, place.session_name).session())
    return sessions


class _ConversationReader:
    """Makes turns of one conversation."""

    def __init__(self, row: dict[str, Any], default_name: str) -> None:
        self._row = row
        self._name = name_of(row, ("id",), default_name)
        self._space = "" if row.get("hash_id_scope") == "global" else self._name
        self._block = tokens_of(row, "block_size", least=1) or BLOCK_TOKENS
        self._turns: list[Turn] = []
        self._ends: list[float] = []
        self._relative = False  # times inside an entry count from it

    def session(self) -> SessionPlan:
        """Raises Unusable."""
        entries = self._row.get("requests")
        if not isinstance(entries, list):
            raise Unusable("no list of requests")
        self._relative = any(_is_earlier_inside(entry) for entry in entries)
        self._agent(entries, "main", (), 0.0)
        if not self._turns:
            raise Unusable("no calls")
        return SessionPlan(session_id=self._name, turns=tuple(self._turns))

    def _agent(self, entries: list[Any], agent: str, sent_by: tuple[int, ...], offset: float) -> tuple[int, ...]:
        """An agent's calls, with the sub-agents that it sent; what a call after all of them waits for."""
        last = sent_by
        joined: list[int] = []  # last turns of sub-agents that the next call waits for
        for entry in sorted(entries, key=_time):
            if entry.get("type") == "subagent":
                ends = self._sub_agent(entry, last, offset)
                joined += [] if entry.get("status") == _NOT_AWAITED else ends
            else:
                last = (self._add(entry, _time(entry) + offset, tuple(sorted({*last, *joined})), agent),)
                joined = []
        return tuple(sorted({*last, *joined}))

    def _sub_agent(self, entry: dict[str, Any], sent_by: tuple[int, ...], offset: float) -> tuple[int, ...]:
        entries = entry.get("requests")
        if not isinstance(entries, list):
            raise Unusable("a subagent without requests")
        began = _time(entry)
        name = f"sub-{entry.get('agent_id', began)}"
        return self._agent(entries, name, sent_by, offset + began if self._relative else 0.0) if entries else ()

    def _add(self, call: dict[str, Any], started: float, after: tuple[int, ...], agent: str) -> int:
        tokens, output = tokens_of(call, "in", "input_length"), tokens_of(call, "out", "output_length")
        ids = call.get("hash_ids") or []
        if tokens is None or output is None or not isinstance(ids, list) or len(ids) > _MOST_IDS:
            raise Unusable("a call without in, out or a list of hash_ids")
        gap = wait_of(call, "think_time", 1.0)
        if gap is None:
            gap = started - max((self._ends[turn] for turn in after), default=started)
        prompt = BlocksPrompt(tuple(int(one) for one in ids), self._block, max(1, tokens), self._space)
        self._turns.append(
            Turn(
                prompt=prompt,
                after=after,
                gap_s=round(max(0.0, gap), 6) if after else 0.0,
                output_tokens=max(1, output),
                agent=agent,
            )
        )
        self._ends.append(started + (wait_of(call, "api_time", 1.0) or 0.0))
        return len(self._turns) - 1


def _is_earlier_inside(entry: object) -> bool:
    """Whether a call inside of an entry has an earlier time than the entry: its time counts from there, then."""
    inside = entry.get("requests") if isinstance(entry, dict) else None
    if not isinstance(inside, list) or not inside:
        return False
    return min(_time(one) for one in inside) < _time(entry)


def _time(entry: object) -> float:
    stamp = number_of(entry.get("t")) if isinstance(entry, dict) else None
    if stamp is None:
        raise Unusable("a request without t")
    return stamp
