"""From what others call a message to ours: OpenAI's, Anthropic's blocks, OTel's parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ..workload.plan import Message, MessagesPrompt, ToolCall, Turn
from ..workload.text import estimated_tokens
from .source import Unusable

_OTHER_ROLES = {"human": "user", "ai": "assistant", "developer": "system", "model": "assistant"}
_TEXT_KEYS = ("text", "content", "input_text", "output_text")


def message_of(row: object) -> Message:
    """A message in OpenAI's chat form, or with Anthropic's or OTel's list of typed parts.

    A message that holds tool results alone becomes one of role ``tool`` with the first result's id; more than one
    result is one text. Raises Unusable.
    """
    if not isinstance(row, dict) or not isinstance(row.get("role"), str):
        raise Unusable("a message without a role")
    role = str(_OTHER_ROLES.get(row["role"], row["role"]))
    content = row.get("content", row.get("parts"))
    spoken_by = row.get("name") if role == "tool" else None
    calls = [_openai_call(call) for call in row.get("tool_calls") or ()]
    tool_call_id = row.get("tool_call_id")
    if isinstance(content, list):
        text = text_of(content)
        calls += [_call_of_part(part) for part in content if _kind(part) in ("tool_use", "tool_call")]
        results = [part for part in content if _kind(part) in ("tool_result", "tool_call_response")]
        if results:
            role = "tool"
            tool_call_id = results[0].get("tool_use_id") or results[0].get("id")
    else:
        text = content if isinstance(content, str) else ""
    return Message(
        role,
        text,
        tuple(calls),
        str(tool_call_id) if tool_call_id else None,
        spoken_by,
    )


def text_of(content: object) -> str:
    """The text of a content that is a string or a list of typed parts; reasoning is not part of it."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else msgspec.json.encode(content).decode()
    pieces: list[str] = []
    for part in content:
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, dict) and _kind(part) in ("tool_result", "tool_call_response"):
            pieces.append(text_of(part.get("content", part.get("response", part.get("result")))))
        elif isinstance(part, dict) and _kind(part) not in ("thinking", "reasoning", "tool_use", "tool_call"):
            pieces += [part[key] for key in _TEXT_KEYS if isinstance(part.get(key), str)][:1]
    return "\n".join(piece for piece in pieces if piece)


def conversation_turns(messages: Iterable[Message], gaps: Iterable[float] = ()) -> tuple[Turn, ...]:
    """One turn for each answer of the assistant; messages after the last answer are a last turn without one.

    ``gaps``: seconds before the first, second, … turn after the first.
    """
    turns: list[Turn] = []
    waiting: list[Message] = []
    later_gaps = iter(gaps)

    def add(answer: Message | None) -> None:
        last = len(turns) - 1
        turns.append(
            Turn(
                prompt=MessagesPrompt(tuple(waiting)),
                continues=last if turns else None,
                after=(last,) if turns else (),
                gap_s=max(0.0, next(later_gaps, 0.0)) if turns else 0.0,
                output_tokens=answer_tokens(answer),
                recorded=answer,
            )
        )
        waiting.clear()

    for message in messages:
        if message.role == "assistant" and waiting:
            add(message)
        elif message.role == "assistant" and turns:
            turns[-1] = msgspec.structs.replace(turns[-1], recorded=_joined(turns[-1].recorded, message))
        else:
            waiting.append(message)
    if waiting and (not turns or waiting[-1].role != "system"):
        add(None)
    return tuple(turns)


def answer_tokens(answer: Message | None) -> int | None:
    """About how many tokens an answer had, its calls included; None when there is none."""
    if answer is None:
        return None
    return max(1, estimated_tokens(answer.content) + sum(_call_tokens(call) for call in answer.tool_calls))


def tools_of(rows: object) -> tuple[dict[str, object], ...]:
    """Tools in OpenAI's form, from OpenAI's, Anthropic's or a bare description of a function."""
    if not isinstance(rows, list):
        return ()
    return tuple(_tool(row) for row in rows if isinstance(row, dict))


def _tool(row: dict[str, Any]) -> dict[str, object]:
    if isinstance(row.get("function"), dict):
        return row
    function: dict[str, object] = {key: row[key] for key in ("name", "description") if key in row}
    parameters = row.get("parameters", row.get("input_schema"))
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def _call_tokens(call: ToolCall) -> int:
    return estimated_tokens(call.name + call.arguments) + 10


def _joined(first: Message | None, second: Message) -> Message:
    if first is None:
        return second
    text = "\n".join(piece for piece in (first.content, second.content) if piece)
    return Message("assistant", text, first.tool_calls + second.tool_calls)


def _kind(part: object) -> str:
    return str(part.get("type", "text")) if isinstance(part, dict) else "text"


def _openai_call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Unusable("a tool call without a function's name")
    return ToolCall(str(call.get("id", "")), function["name"], _arguments(function.get("arguments", "{}")))


def _call_of_part(part: dict[str, Any]) -> ToolCall:
    arguments = part.get("input", part.get("arguments", {}))
    return ToolCall(str(part.get("id", "")), str(part.get("name", "")), _arguments(arguments))


def _arguments(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
