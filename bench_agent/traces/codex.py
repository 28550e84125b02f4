"""Codex's session files (``rollout-*.jsonl``): items of the conversation and the usage after each call.

What the model made (messages of the assistant, calls, reasoning) since the last input is one answer. Tools and, often,
the instructions are not in the file: the first call's usage counts them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..workload.plan import Message, MessagesPrompt, SessionPlan, ToolCall, Turn
from ..workload.text import estimated_tokens
from .messages import answer_tokens, message_of, text_of
from .source import BadLines, Unusable, files_of, json_lines, seconds_of


def sniff(first: object) -> bool:
    """Whether a first object is of this format."""
    return isinstance(first, dict) and "payload" in first and first.get("type") in ("session_meta", "response_item")


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """One session a file."""
    sessions: list[SessionPlan] = []
    for file in files_of(path, (".jsonl",)):
        reader = _RolloutReader(file.stem)
        for number, row in json_lines(file, bad):
            with bad.leaving_out(file, number):
                reader.line(row)
        plan = reader.session()
        if plan.turns:
            sessions.append(plan)
    return sessions


class _RolloutReader:
    """Collects input until the model answers, and the answer until there is input again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._turns: list[Turn] = []
        self._input: list[Message] = []
        self._answer: Message | None = None
        self._input_at: float | None = None
        self._answered_at: float | None = None
        self._ended_at: float | None = None
        self._fresh = True  # the next turn starts from nothing: at the beginning and after a compaction
        self._missing = 0

    def line(self, row: dict[str, Any]) -> None:
        """Take one line. Raises Unusable."""
        payload = row.get("payload")
        if not isinstance(payload, dict):
            raise Unusable("a line without a payload")
        stamp = seconds_of(row.get("timestamp"))
        match row.get("type"):
            case "session_meta":
                self._name = str(payload.get("id", self._name))
                if isinstance(payload.get("instructions"), str):
                    self._input.append(Message("system", payload["instructions"]))
            case "response_item":
                self._item(payload, stamp)
            case "compacted":
                self._close(None)
                self._fresh = True
                self._input = [Message("user", str(payload.get("message", "")))]
            case "event_msg" if payload.get("type") == "token_count":
                self._usage(payload.get("info"))

    def session(self) -> SessionPlan:
        """What was read."""
        self._close(None)
        return SessionPlan(session_id=self._name, turns=tuple(self._turns), unrecorded_tokens=self._missing)

    def _item(self, item: dict[str, Any], stamp: float | None) -> None:
        kind = item.get("type")
        if kind == "message" and item.get("role") != "assistant":
            self._take_input(message_of(item), stamp)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._take_input(Message("tool", text_of(item.get("output")), (), str(item.get("call_id", ""))), stamp)
        elif kind == "message":
            self._take_answer(Message("assistant", text_of(item.get("content"))), stamp)
        elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
            arguments = item.get("arguments", item.get("input", "{}"))
            call = ToolCall(str(item.get("call_id", "")), str(item.get("name", kind)), text_of(arguments))
            self._take_answer(Message("assistant", "", (call,)), stamp)
        elif kind is None:
            raise Unusable("an item without a type")

    def _take_input(self, message: Message, stamp: float | None) -> None:
        self._close(None)
        self._input.append(message)
        self._input_at = stamp

    def _take_answer(self, message: Message, stamp: float | None) -> None:
        if self._answer is not None:
            text = "\n".join(piece for piece in (self._answer.content, message.content) if piece)
            message = Message("assistant", text, self._answer.tool_calls + message.tool_calls)
        self._answer, self._answered_at = message, stamp

    def _usage(self, info: object) -> None:
        last = info.get("last_token_usage") if isinstance(info, dict) else None
        if not isinstance(last, dict):
            return
        if not self._turns and self._answer is not None:
            known = sum(estimated_tokens(message.content) for message in self._input)
            self._missing = max(0, int(last.get("input_tokens") or 0) - known)
        self._close(int(last.get("output_tokens") or 0) or None)

    def _close(self, output_tokens: int | None) -> None:
        if self._answer is None or not self._input:
            return
        last = len(self._turns) - 1
        gap = 0.0
        if self._turns and self._ended_at is not None and self._input_at is not None:
            gap = max(0.0, self._input_at - self._ended_at)
        self._turns.append(
            Turn(
                prompt=MessagesPrompt(tuple(self._input)),
                continues=None if self._fresh else last,
                after=(last,) if self._turns else (),
                gap_s=round(gap, 6),
                output_tokens=output_tokens or answer_tokens(self._answer),
                recorded=self._answer,
            )
        )
        self._input, self._answer, self._fresh = [], None, False
        self._ended_at = self._answered_at
