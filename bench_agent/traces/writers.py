"""Workloads written in the forms of text that other load tools read. What a form cannot hold, ``losses`` tells.

Prompts of hash-id blocks are written with their made-up text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from ..workload.plan import Message, SessionPlan, Turn, Workload, whole_conversations
from ..workload.text import BlockTexts
from .rendering import Rendering, answer_text, new_messages, said, starts_of

_ROLES_OF_SHAREGPT = MappingProxyType({"assistant": "gpt", "system": "system"})


def write_conversations(workload: Workload, path: Path) -> None:
    """``{"session_id", "messages", "tools"}`` lines: one for each end of a conversation (forks have several)."""
    rows = []
    for session in workload.sessions:
        for number, messages in enumerate(_ends(session)):
            row: dict[str, Any] = {"session_id": _numbered(session, number), "messages": [openai(m) for m in messages]}
            if session.tools:
                row["tools"] = list(session.tools)
            rows.append(row)
    write_lines(path, rows)


def write_inference_perf(workload: Workload, path: Path) -> None:
    """``{"id", "conversations"}`` lines."""
    rows = [
        {
            "id": _numbered(session, number),
            "conversations": [{"from": _ROLES_OF_SHAREGPT.get(m.role, "human"), "value": said(m)} for m in messages],
        }
        for session in workload.sessions
        for number, messages in enumerate(_ends(session))
    ]
    write_lines(path, rows)


def write_aiperf(workload: Workload, path: Path) -> None:
    """``{"session_id", "turns"}`` lines, one for each session; several whole prompts are lines by themselves."""
    rows: list[dict[str, Any]] = []
    texts = BlockTexts()
    for session in workload.sessions:
        alone = len(session.turns) > 1 and all(turn.continues is None for turn in session.turns)
        turns: list[dict[str, Any]] = []
        for turn in session.turns:
            turns += _aiperf_turns(turn, texts, first=not turns and not alone)
        if alone:
            rows += [{"session_id": session.session_id, **entry} for entry in turns]
        else:
            rows.append({"session_id": session.session_id, "turns": turns})
    write_lines(path, rows)


def write_text_trace(workload: Workload, path: Path) -> None:
    """``{"timestamp", "input", "output", "session_id"}`` lines; a conversation is rendered with plain role marks."""
    rows = []
    texts = BlockTexts()
    for session in workload.sessions:
        rendering = Rendering(session, texts)
        for index, start in enumerate(starts_of(session, 0.0)):
            rows.append(
                {
                    "timestamp": round(start * 1e6),
                    "input": rendering.prompt(index),
                    "output": answer_text(session, index),
                    "session_id": session.session_id,
                }
            )
    write_lines(path, rows)


def openai(message: Message) -> dict[str, Any]:
    """A message in OpenAI's form."""
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        row["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        row["tool_call_id"] = message.tool_call_id
    if message.name:
        row["name"] = message.name
    return row


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One JSON object a line."""
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def _ends(session: SessionPlan) -> Iterator[tuple[Message, ...]]:
    """The conversations that no turn continues, whole."""
    texts = BlockTexts()
    continued = {turn.continues for turn in session.turns}
    for index, (turn, messages) in enumerate(whole_conversations(session)):
        if index not in continued:
            answer = () if turn.recorded is None else (turn.recorded,)
            yield (*(messages or new_messages(turn, texts)), *answer)


def _aiperf_turns(turn: Turn, texts: BlockTexts, *, first: bool) -> list[dict[str, Any]]:
    """The system prompt, where the session begins with one, and all else that the turn says as one entry."""
    messages = list(new_messages(turn, texts))
    entries: list[dict[str, Any]] = []
    while first and len(messages) > 1 and messages[0].role == "system":
        entries.append({"role": "system", "text": messages.pop(0).content})
    roles = {message.role for message in messages} - {"system", "assistant"}
    asked: dict[str, Any] = {"role": roles.pop() if len(roles) == 1 else "user"}
    if len(messages) == 1:
        asked["text"] = said(messages[0])
    else:
        asked["texts"] = [said(message) for message in messages]
    if turn.gap_s and turn.after:
        asked["delay"] = round(turn.gap_s * 1000, 3)
    if turn.output_tokens:
        asked["output_length"] = turn.output_tokens
    return [*entries, asked]


def _numbered(session: SessionPlan, number: int) -> str:
    return session.session_id if number == 0 else f"{session.session_id}#{number}"
