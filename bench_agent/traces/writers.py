"""Workloads written in the forms that other load tools read. What a form cannot hold is left out.

Prompts of hash-id blocks are written with their made-up text where a form needs text.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..workload.plan import BlocksPrompt, Message, SessionPlan, TextPrompt, Turn, Workload, whole_conversations
from ..workload.text import BlockTexts, estimated_tokens, made_up_text
from .hash_trace import BLOCK_TOKENS as HASH_TRACE_BLOCK
from .weka import BLOCK_TOKENS as WEKA_BLOCK

ROLES_OF_SHAREGPT = {"user": "human", "assistant": "gpt", "system": "system", "tool": "human"}


def write_conversations(workload: Workload, path: Path) -> None:
    """``{"session_id", "messages", "tools"}`` lines: one for each end of a conversation (forks have several)."""
    rows = []
    for session in workload.sessions:
        for number, messages in enumerate(_ends(session)):
            row: dict[str, Any] = {"session_id": _numbered(session, number), "messages": [openai(m) for m in messages]}
            if session.tools:
                row["tools"] = list(session.tools)
            rows.append(row)
    _write_lines(path, rows)


def write_inference_perf(workload: Workload, path: Path) -> None:
    """``{"id", "conversations"}`` lines."""
    rows = [
        {
            "id": _numbered(session, number),
            "conversations": [{"from": ROLES_OF_SHAREGPT.get(m.role, "human"), "value": m.content} for m in messages],
        }
        for session in workload.sessions
        for number, messages in enumerate(_ends(session))
    ]
    _write_lines(path, rows)


def write_aiperf(workload: Workload, path: Path) -> None:
    """``{"session_id", "turns"}`` lines, one for each session: its turns in order, without forks."""
    texts = BlockTexts()
    rows = []
    for session in workload.sessions:
        turns: list[dict[str, Any]] = []
        for turn in session.turns:
            entries: list[dict[str, Any]] = [
                {"role": message.role, "text": message.content} for message in new_messages(turn, texts)
            ]
            asked = entries[-1]
            asked["delay"] = round(turn.gap_s * 1000, 3)
            if turn.output_tokens:
                asked["output_length"] = turn.output_tokens
            turns += entries
        rows.append({"session_id": session.session_id, "turns": turns})
    _write_lines(path, rows)


def write_text_trace(workload: Workload, path: Path) -> None:
    """``{"timestamp", "input", "output", "session_id"}`` lines; a conversation is rendered with plain role marks."""
    rows = []
    for session in workload.sessions:
        clock = session.arrival_s
        for turn, prompt in _rendered(session, BlockTexts()):
            clock += turn.gap_s
            rows.append(
                {
                    "timestamp": round(clock * 1e6),
                    "input": prompt,
                    "output": _answer_text(turn),
                    "session_id": session.session_id,
                }
            )
    _write_lines(path, rows)


def write_hash_trace(workload: Workload, path: Path) -> None:
    """``{"timestamp", "input_length", "output_length", "hash_ids"}`` lines, by the time they would be sent."""
    ids = _BlockIds()
    rows: list[dict[str, Any]] = []
    for session in workload.sessions:
        clock = session.arrival_s
        for turn, tokens, blocks in _blocks(session, HASH_TRACE_BLOCK):
            clock += turn.gap_s
            rows.append(
                {
                    "timestamp": round(clock * 1000),
                    "input_length": tokens,
                    "output_length": turn.output_tokens or 1,
                    "hash_ids": [ids.number(block) for block in blocks],
                }
            )
    _write_lines(path, sorted(rows, key=_timestamp))


def write_weka(workload: Workload, path: Path) -> None:
    """One object a session and line; sub-agents are entries of their own."""
    rows = []
    for session in workload.sessions:
        ids = _BlockIds()
        clock = 0.0
        requests: list[dict[str, Any]] = []
        for turn, tokens, blocks in _blocks(session, WEKA_BLOCK):
            clock += turn.gap_s + 0.001
            call = {
                "t": round(clock, 6),
                "type": "n",
                "model": "model",
                "in": tokens,
                "out": turn.output_tokens or 1,
                "hash_ids": [ids.number(block) for block in blocks],
                "think_time": turn.gap_s,
                "api_time": 0.0,
            }
            _put_call(requests, call, turn.agent)
        rows.append(
            {"id": session.session_id, "block_size": WEKA_BLOCK, "hash_id_scope": "local", "requests": requests}
        )
    _write_lines(path, rows)


def write_otel(workload: Workload, path: Path) -> None:
    """OTLP JSON: one span a request, with its whole conversation."""
    spans = []
    for number, session in enumerate(workload.sessions):
        clock = session.arrival_s
        trace = hashlib.sha256(f"{number}/{session.session_id}".encode()).hexdigest()[:32]
        for index, (turn, messages) in enumerate(whole_conversations(session)):
            started = clock + turn.gap_s
            clock = started + 0.001
            spans.append(_span(session, turn, messages, trace, index, (started, clock)))
    scope = {"scope": {"name": "bench-agent"}, "spans": spans}
    resource = {"attributes": [_attribute("service.name", "bench-agent")]}
    path.write_bytes(msgspec.json.encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}))


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


def new_messages(turn: Turn, texts: BlockTexts) -> tuple[Message, ...]:
    """What a turn adds, as messages: a prompt that is text or blocks is one message of the user."""
    match turn.prompt:
        case BlocksPrompt():
            return (Message("user", texts.text(turn.prompt)),)
        case TextPrompt():
            return (Message("user", turn.prompt.text),)
        case _:
            return turn.prompt.messages


def _ends(session: SessionPlan) -> Iterator[tuple[Message, ...]]:
    """The conversations that no turn continues, whole."""
    texts = BlockTexts()
    continued = {turn.continues for turn in session.turns}
    for index, (turn, messages) in enumerate(whole_conversations(session)):
        if index not in continued:
            answer = () if turn.recorded is None else (turn.recorded,)
            yield (*(messages or new_messages(turn, texts)), *answer)


def _rendered(session: SessionPlan, texts: BlockTexts) -> Iterator[tuple[Turn, str]]:
    for turn, messages in whole_conversations(session):
        if isinstance(turn.prompt, BlocksPrompt):
            yield turn, texts.text(turn.prompt)
        elif isinstance(turn.prompt, TextPrompt):
            yield turn, turn.prompt.text
        else:
            yield turn, "".join(f"{message.role}: {message.content}\n" for message in messages)


def _answer_text(turn: Turn) -> str:
    if turn.recorded is not None:
        return turn.recorded.content
    return made_up_text(random.Random("answer"), turn.output_tokens or 1)


def _blocks(session: SessionPlan, block_tokens: int) -> Iterator[tuple[Turn, int, list[str]]]:
    """Each turn's prompt as tokens and chained block keys; where only text is known, four characters are a token."""
    block_chars = block_tokens * 4
    for turn, prompt in _rendered(session, BlockTexts()):
        if isinstance(turn.prompt, BlocksPrompt) and turn.prompt.block_tokens == block_tokens:
            space = turn.prompt.namespace
            yield turn, turn.prompt.num_tokens, [f"{space}/{one}" for one in turn.prompt.hash_ids]
            continue
        tokens = estimated_tokens(prompt)
        keys: list[str] = []
        for start in range(0, len(prompt), block_chars):
            before = keys[-1] if keys else ""
            keys.append(hashlib.sha256((before + prompt[start : start + block_chars]).encode()).hexdigest())
        yield turn, min(tokens, len(keys) * block_tokens), keys


class _BlockIds:
    """Small numbers for block keys, in the order of their first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, key: str) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _put_call(requests: list[dict[str, Any]], call: dict[str, Any], agent: str) -> None:
    if agent == "main":
        requests.append(call)
        return
    for entry in reversed(requests):
        if entry["type"] != "subagent":
            break
        if entry["agent_id"] == agent:
            entry["requests"].append(call)
            return
    requests.append({"t": call["t"], "type": "subagent", "agent_id": agent, "requests": [call]})


def _span(
    session: SessionPlan,
    turn: Turn,
    messages: tuple[Message, ...],
    trace: str,
    index: int,
    times: tuple[float, float],
) -> dict[str, Any]:
    texts = BlockTexts()
    whole = messages or new_messages(turn, texts)
    attributes = [
        _attribute("gen_ai.operation.name", "chat"),
        _attribute("gen_ai.conversation.id", session.session_id),
        _attribute("gen_ai.input.messages", _otel_messages(whole)),
    ]
    if turn.agent != "main":
        attributes.append(_attribute("gen_ai.agent.name", turn.agent))
    if turn.recorded is not None:
        attributes.append(_attribute("gen_ai.output.messages", _otel_messages((turn.recorded,))))
    if session.tools:
        attributes.append(_attribute("gen_ai.tool.definitions", msgspec.json.encode(session.tools).decode()))
    if turn.output_tokens:
        attributes.append({"key": "gen_ai.usage.output_tokens", "value": {"intValue": str(turn.output_tokens)}})
    return {
        "traceId": trace,
        "spanId": hashlib.sha256(f"{trace}/{index}".encode()).hexdigest()[:16],
        "name": "chat model",
        "kind": 3,
        "startTimeUnixNano": str(round(times[0] * 1e9)),
        "endTimeUnixNano": str(round(times[1] * 1e9)),
        "attributes": attributes,
    }


def _otel_messages(messages: Iterable[Message]) -> str:
    rows = []
    for message in messages:
        parts: list[dict[str, Any]] = []
        if message.role == "tool":
            parts.append({"type": "tool_call_response", "id": message.tool_call_id, "response": message.content})
        elif message.content:
            parts.append({"type": "text", "content": message.content})
        parts += [
            {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
            for call in message.tool_calls
        ]
        rows.append({"role": message.role, "parts": parts})
    return msgspec.json.encode(rows).decode()


def _attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def _timestamp(row: dict[str, Any]) -> float:
    return float(row["timestamp"])


def _numbered(session: SessionPlan, number: int) -> str:
    return session.session_id if number == 0 else f"{session.session_id}#{number}"


def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
