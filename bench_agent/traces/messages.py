"""From what others call a message to ours: OpenAI's (chat and responses), Anthropic's blocks, OTel's parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from ..workload.plan import Message, MessagesPrompt, ToolCall, Turn
from ..workload.text import estimated_tokens
from .source import Unusable

_OTHER_ROLES = MappingProxyType(
    {"human": "user", "ai": "assistant", "developer": "system", "model": "assistant", "function": "tool"}
)
_TEXT_KEYS = ("text", "content", "input_text", "output_text", "refusal")
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use", "tool_call")
_RESULTS = ("tool_result", "mcp_tool_result", "tool_call_response")
_REASONING = ("thinking", "redacted_thinking", "reasoning", "reasoning_content")
_ITEM_CALLS = ("function_call", "custom_tool_call", "local_shell_call", "mcp_call")
_ITEM_RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output", "mcp_tool_call_output")
_PICTURES = MappingProxyType(
    {
        "image": "image",
        "image_url": "image",
        "input_image": "image",
        "output_image": "image",
        "document": "file",
        "file": "file",
        "input_file": "file",
        "audio": "audio",
        "input_audio": "audio",
        "video": "video",
        "video_url": "video",
        "blob": "file",
        "uri": "file",
    }
)


def messages_of(row: object, remarks: Counter[str]) -> tuple[Message, ...]:
    """The messages that one row stands for: in OpenAI's chat form or an item of its responses, Anthropic's or OTel's.

    Tool results in the parts of a message are messages of role ``tool``, before what else it says. What no text can
    say leaves a mark such as ``[image]`` and is counted in ``remarks``; reasoning is counted alone. Raises Unusable.
    """
    if not isinstance(row, dict):
        raise Unusable("a message that is not an object")
    if not isinstance(row.get("role"), str):
        return _item(row, remarks)
    role = str(_OTHER_ROLES.get(row["role"], row["role"]))
    read = _Content(remarks)
    read.take(row.get("content", row.get("parts")))
    calls = [_openai_call(call) for call in _listed(row, "tool_calls")] + read.calls
    if isinstance(row.get("function_call"), dict):
        calls.append(_openai_call({"function": row["function_call"]}))
    for key in ("reasoning_content", "reasoning", "thinking_blocks"):
        if row.get(key):
            remarks["reasoning parts"] += 1
    spoken_by = row.get("name") if role == "tool" and isinstance(row.get("name"), str) else None
    said = Message(role, read.text(), tuple(calls), _call_id(row), spoken_by)
    results = [msgspec.structs.replace(result, name=spoken_by) for result in read.results]
    only_results = results and not (said.content or calls)
    return (*results, *(() if only_results else (said,)))


def text_of(content: object, remarks: Counter[str]) -> str:
    """The text of a content that is a string or a list of typed parts, the results of tools in it too."""
    read = _Content(remarks)
    read.take(content)
    pieces = [*(result.content for result in read.results), read.text()]
    return "\n".join(piece for piece in pieces if piece)


def conversation_turns(messages: Iterable[Message], gaps: Iterable[float] = (), given: int = 0) -> tuple[Turn, ...]:
    """One turn for each answer of the assistant; messages after the last answer are a last turn without one.

    ``gaps``: seconds before the first, second, … turn after the first. The first ``given`` messages are prompt,
    whoever said them (examples).
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

    for number, message in enumerate(messages):
        if number < given or message.role != "assistant":
            waiting.append(message)
        elif waiting:
            add(message)
        elif turns:
            joined = joined_answers(turns[-1].recorded, message)
            turns[-1] = msgspec.structs.replace(turns[-1], recorded=joined, output_tokens=answer_tokens(joined))
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


def unrecorded_tokens(counted: int, first: Turn) -> int:
    """About how many of the tokens that were counted of a session's first prompt its messages do not hold."""
    known = first.prompt.messages if isinstance(first.prompt, MessagesPrompt) else ()
    return max(0, counted - sum(estimated_tokens(message.content) for message in known))


def joined_answers(first: Message | None, second: Message) -> Message:
    """Two pieces of one answer."""
    if first is None:
        return second
    text = "\n".join(piece for piece in (first.content, second.content) if piece)
    return Message("assistant", text, first.tool_calls + second.tool_calls)


def tools_of(rows: object) -> tuple[dict[str, object], ...]:
    """Tools in OpenAI's form, from OpenAI's, Anthropic's or a bare description of a function."""
    if not isinstance(rows, list):
        return ()
    return tuple(_tool(row) for row in rows if isinstance(row, dict))


@dataclass(slots=True)
class _Content:
    """Takes a content apart: its text, the calls and the results in it."""

    remarks: Counter[str]
    pieces: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    results: list[Message] = field(default_factory=list)

    def take(self, content: object) -> None:
        if isinstance(content, str):
            self.pieces.append(content)
        elif isinstance(content, dict):
            self._part(content)
        elif isinstance(content, list):
            for part in content:
                self.take(part)
        elif content is not None:
            raise Unusable("a content that is neither text nor a list of parts")

    def text(self) -> str:
        return "\n".join(piece for piece in self.pieces if piece)

    def _part(self, part: dict[str, Any]) -> None:
        kind = str(part.get("type", "text"))
        if kind in _CALLS:
            self.calls.append(_call_of_part(part))
        elif kind in _RESULTS:
            called = part.get("tool_use_id") or part.get("id")
            result = _result(part, self.remarks)
            self.results.append(Message("tool", result, (), str(called) if called else None))
        elif kind in _REASONING:
            self.remarks["reasoning parts"] += 1
        elif kind in _PICTURES:
            what = str(part["modality"]) if isinstance(part.get("modality"), str) else _PICTURES[kind]
            self.remarks[f"{what} parts (their place is marked)"] += 1
            self.pieces.append(f"[{what}]")
        elif found := [part[key] for key in _TEXT_KEYS if part.get(key) is not None][:1]:
            self.take(found[0])
        elif "text" not in kind:
            self.remarks[f"parts of type {kind:.40}"] += 1


def _item(row: dict[str, Any], remarks: Counter[str]) -> tuple[Message, ...]:
    """An item of OpenAI's responses that is no message."""
    kind = row.get("type")
    called = str(row.get("call_id") or row.get("id") or "")
    if kind in _ITEM_CALLS:
        arguments = row.get("arguments", row.get("input", row.get("action", {})))
        call = ToolCall(called, str(row.get("name") or kind), _arguments(arguments))
        return (Message("assistant", "", (call,)),)
    if kind in _ITEM_RESULTS:
        return (Message("tool", _result(row, remarks), (), called or None),)
    if kind in _REASONING:
        remarks["reasoning parts"] += 1
        return ()
    if isinstance(kind, str) and kind != "message":
        remarks[f"items of type {kind:.40}"] += 1
        return ()
    raise Unusable("a message without a role")


def _result(part: Mapping[str, Any], remarks: Counter[str]) -> str:
    """What a tool gave: text, typed parts, or any other JSON, as JSON."""
    found = next((part[key] for key in ("content", "response", "result", "output") if key in part), None)
    if isinstance(found, dict) and isinstance(found.get("content"), str | list):
        found = found["content"]
    if isinstance(found, str) or found is None:
        return found or ""
    if isinstance(found, list) and all(isinstance(one, str) or _is_part(one) for one in found):
        return text_of(found, remarks)
    return msgspec.json.encode(found).decode()


def _is_part(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _call_id(row: Mapping[str, Any]) -> str | None:
    several = row.get("tool_call_ids")
    found = row.get("tool_call_id") or (several[0] if isinstance(several, list) and several else None)
    return str(found) if found else None


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


def _listed(row: Mapping[str, Any], key: str) -> list[Any]:
    found = row.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise Unusable(f"{key} is not a list")
    return found


def _openai_call(call: Any) -> ToolCall:
    """A call in OpenAI's form: of a function, or of a custom tool, whose input is free text; or bare."""
    if not isinstance(call, dict):
        raise Unusable("a tool call that is not an object")
    called = call.get("function") or call.get("custom") or call
    if not isinstance(called, dict) or not isinstance(called.get("name"), str):
        raise Unusable("a tool call without a function's name")
    given = called.get("arguments", called.get("input", called.get("args", "{}")))
    return ToolCall(str(call.get("id") or ""), called["name"], _arguments(given))


def _call_of_part(part: dict[str, Any]) -> ToolCall:
    arguments = part.get("input", part.get("arguments", {}))
    return ToolCall(str(part.get("id") or ""), str(part.get("name") or ""), _arguments(arguments))


def _arguments(arguments: object) -> str:
    if arguments is None:
        return "{}"
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
