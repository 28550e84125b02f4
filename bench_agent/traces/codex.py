"""Codex's session files (``rollout-*.jsonl``): items of the conversation and the usage after each call.

What the model made (messages of the assistant, calls, reasoning) since the last input is one answer. Tools and, often,
the instructions are not in the file: the first call's usage counts them. Read are lines with a ``payload``, those of
2025 whose items stand bare, and the first program's one object (``{"session", "items"}``). A rollback goes on from the
turn before what it drops; a compaction starts anew.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from ..workload.plan import Message, MessagesPrompt, SessionPlan, Turn
from .codex_agents import Rollout, Span, joined
from .lineage import since_the_first
from .messages import answer_tokens, joined_answers, messages_of, unrecorded_tokens
from .rows import objects
from .source import BadLines, Unusable, files_of, name_of, seconds_of, tokens_of

_WRAPPED = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
_ITEMS = ("message", "reasoning", "function_call", "function_call_output", "local_shell_call", "custom_tool_call")


def sniff(first: object) -> bool:
    """Whether a first value is of this format."""
    if not isinstance(first, dict):
        return False
    if isinstance(first.get("session"), dict) and isinstance(first.get("items"), list):
        return True
    if isinstance(first.get("payload"), dict):
        return first.get("type") in _WRAPPED
    return first.get("record_type") == "state" or _is_bare_header(first)


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """One session a file; those of sub-agents are joined to the session that sent them."""
    found: list[Rollout] = []
    for file in files_of(path, (".jsonl", ".json")):
        reader = _RolloutReader(file.stem, bad.remarks)
        for place, row in objects(file, bad):
            with bad.leaving_out(place):
                for line in _lines(row):
                    reader.line(line)
        found.append(reader.rollout())
    return since_the_first(joined(found))


def _is_bare_header(row: dict[str, Any]) -> bool:
    return "type" not in row and {"id", "timestamp", "instructions"} <= row.keys()


def _lines(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A line in the form with a payload, whatever generation wrote it. Raises Unusable."""
    if isinstance(row.get("session"), dict) and isinstance(row.get("items"), list):
        header = {"type": "session_meta", "payload": row["session"]}
        return [header, *(line for item in row["items"] for line in _lines(item))]
    if row.get("record_type") == "state":
        return []
    if "payload" not in row and _is_bare_header(row):
        return [{"type": "session_meta", "timestamp": row["timestamp"], "payload": row}]
    if "payload" not in row and (row.get("type") in _ITEMS or "role" in row):
        return [{"type": "response_item", "timestamp": row.get("timestamp"), "payload": row}]
    return [row]


class _RolloutReader:
    """Collects input until the model answers, and the answer until there is input again."""

    def __init__(self, name: str, remarks: Counter[str]) -> None:
        self._name = name
        self._named = False
        self._remarks = remarks
        self._turns: list[Turn] = []
        self._opens: list[bool] = []  # whether a turn's input has a message of the user
        self._input: list[Message] = []
        self._answer: Message | None = None
        self._began_at: float | None = None
        self._parent: str | None = None
        self._nickname: str | None = None
        self._spans: list[Span] = []
        self._input_at: float | None = None
        self._answered_at: float | None = None
        self._ended_at: float | None = None
        self._goes_on_from: int | None = None  # the turn that the next one continues; None: from nothing
        self._counted = True  # whether the last turn's usage is known
        self._missing = 0

    def line(self, row: dict[str, Any]) -> None:
        """Take one line. Raises Unusable."""
        payload = row.get("payload")
        if not isinstance(payload, dict):
            raise Unusable("a line without a payload")
        stamp = seconds_of(row.get("timestamp"))
        self._began_at = stamp if self._began_at is None else self._began_at
        match row.get("type"):
            case "session_meta":
                self._header(payload)
            case "response_item":
                self._item(payload, stamp)
            case "compacted":
                self._compacted(payload)
            case "event_msg" if payload.get("type") == "token_count":
                self._usage(payload.get("info"))
            case "event_msg" if payload.get("type") == "thread_rolled_back":
                self._roll_back(tokens_of(payload, "num_turns") or 0)

    def rollout(self) -> Rollout:
        """What was read."""
        self._close(None)
        plan = SessionPlan(session_id=self._name, turns=tuple(self._turns), unrecorded_tokens=self._missing)
        return Rollout(plan, self._began_at, tuple(self._spans), self._parent, self._nickname)

    def _header(self, meta: dict[str, Any]) -> None:
        """The first is the session's own; a fork has its parent's after it."""
        if self._named:
            return
        self._named = True
        self._name = name_of(meta, ("id", "session_id"), self._name)
        source = meta.get("source")
        sent = source.get("subagent") if isinstance(source, dict) else None
        spawn = sent.get("thread_spawn") if isinstance(sent, dict) else None
        told = {**meta, **spawn} if isinstance(spawn, dict) else meta
        self._parent = name_of(told, ("parent_thread_id",), "") or None
        self._nickname = name_of(told, ("agent_nickname", "agent_role"), "") or None
        base = meta.get("base_instructions")
        for text in (base.get("text") if isinstance(base, dict) else base, meta.get("instructions")):
            if isinstance(text, str) and text:
                self._input.append(Message("system", text))

    def _item(self, item: dict[str, Any], stamp: float | None) -> None:
        if item.get("type") is None and "role" not in item:
            raise Unusable("an item without a type")
        for message in messages_of(item, self._remarks):
            if message.role == "assistant":
                self._answer = joined_answers(self._answer, message)
                self._answered_at = stamp
            else:
                self._close(None)
                self._input.append(message)
                self._input_at = stamp

    def _compacted(self, payload: dict[str, Any]) -> None:
        """What stands in the new history, else the summary; the instructions stay."""
        self._close(None)
        self._goes_on_from = None
        rows = payload.get("replacement_history")
        found = [one for row in rows for one in messages_of(row, self._remarks)] if isinstance(rows, list) else []
        told = payload.get("message")
        if not found and isinstance(told, str) and told:
            found = [Message("user", told)]
        system = [message for message in self._first_system() if message not in found]
        self._input = [*system, *found]

    def _first_system(self) -> tuple[Message, ...]:
        if not self._turns or not isinstance(self._turns[0].prompt, MessagesPrompt):
            return tuple(message for message in self._input if message.role == "system")
        return tuple(message for message in self._turns[0].prompt.messages if message.role == "system")

    def _roll_back(self, num_turns: int) -> None:
        """Drop the user's last ``num_turns`` turns, with all that the model did in each."""
        self._close(None)
        if any(message.role == "user" for message in self._input):
            self._input, num_turns = [], num_turns - 1
        at = self._goes_on_from
        while num_turns > 0 and at is not None:
            num_turns -= self._opens[at]
            at = self._turns[at].continues
        if at is None and self._turns:
            self._input = [*self._first_system(), *self._input]
        self._goes_on_from = at

    def _usage(self, info: object) -> None:
        last = info.get("last_token_usage") if isinstance(info, dict) else None
        if not isinstance(last, dict):
            return
        output = tokens_of(last, "output_tokens") or None
        first = not self._turns and self._answer is not None
        self._close(output)
        if len(self._turns) == 1 and (first or not self._counted):
            self._missing = unrecorded_tokens(tokens_of(last, "input_tokens") or 0, self._turns[0])
        if not self._counted and output is not None and self._answer is None:  # counted after its tools had run
            self._turns[-1] = msgspec.structs.replace(self._turns[-1], output_tokens=output)
        self._counted = True

    def _close(self, output_tokens: int | None) -> None:
        """The answer is whole. One that nothing was asked before goes with what is asked next."""
        if self._answer is None:
            return
        if not self._input:
            if self._turns and self._goes_on_from == len(self._turns) - 1:
                self._extend_last(self._answer)
            else:
                self._input.append(self._answer)
            self._answer = None
            return
        gap = 0.0
        if self._turns and self._ended_at is not None and self._input_at is not None:
            gap = max(0.0, self._input_at - self._ended_at)
        last = len(self._turns) - 1
        self._turns.append(
            Turn(
                prompt=MessagesPrompt(tuple(self._input)),
                continues=self._goes_on_from,
                after=(last,) if self._turns else (),
                gap_s=round(gap, 6),
                output_tokens=output_tokens or answer_tokens(self._answer),
                recorded=self._answer,
            )
        )
        self._spans.append((self._input_at, self._answered_at))
        self._opens.append(any(message.role == "user" for message in self._input))
        self._counted = output_tokens is not None
        self._input, self._answer, self._goes_on_from = [], None, len(self._turns) - 1
        self._ended_at = self._answered_at

    def _extend_last(self, answer: Message) -> None:
        """A call of the model with nothing new asked: its answer goes on."""
        last = self._turns[-1]
        recorded = joined_answers(last.recorded, answer)
        tokens = (last.output_tokens or 0) + (answer_tokens(answer) or 0)
        self._turns[-1] = msgspec.structs.replace(last, recorded=recorded, output_tokens=tokens)
