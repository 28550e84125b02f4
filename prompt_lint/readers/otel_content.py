"""The messages and tools in the attributes of a span, in the three conventions that instrumentations use."""

from __future__ import annotations

import re
from typing import Any

from ..request import Json
from .records import unpacked

_LLMETRY = re.compile(r"gen_ai\.prompt\.(\d+)\.(.+)")
_LLMETRY_TOOL = re.compile(r"llm\.request\.functions\.(\d+)\.(.+)")
_INFERENCE = re.compile(r"llm\.input_messages\.(\d+)\.message\.(.+)")
_INFERENCE_TOOL = re.compile(r"llm\.tools\.(\d+)\.tool\.(.+)")
_NUMBERED = re.compile(r"(.+?)\.(\d+)\.(.+)")


def messages_of(attributes: Json) -> list[Any]:
    """The messages of a call, the system text first."""
    own = unpacked(attributes.get("gen_ai.input.messages"))
    if not isinstance(own, list):
        whole = unpacked(attributes.get("gen_ai.prompt"))  # of the event gen_ai.content.prompt
        own = whole if isinstance(whole, list) else []
    messages = [_message(m) for m in own]
    instructions = unpacked(attributes.get("gen_ai.system_instructions"))
    if instructions:
        messages.insert(0, {"role": "system", "content": _parts(instructions)})
    return messages or _grouped(attributes, _LLMETRY) or _grouped(attributes, _INFERENCE)


def tools_of(attributes: Json) -> list[Any]:
    """The tools of a call."""
    own = unpacked(attributes.get("gen_ai.tool.definitions"))
    if isinstance(own, list):
        return own
    inference = [unpacked(tool.get("json_schema")) for tool in _grouped(attributes, _INFERENCE_TOOL)]
    return inference or _grouped(attributes, _LLMETRY_TOOL)


def _grouped(attributes: Json, pattern: re.Pattern[str]) -> list[Json]:
    """Attributes with a number in their name as one dict for each number."""
    found: dict[int, Json] = {}
    for key, value in attributes.items():
        match = pattern.fullmatch(key)
        if match:
            _put(found.setdefault(int(match.group(1)), {}), match.group(2), value)
    return [found[number] for number in sorted(found)]


def _put(holder: Json, name: str, value: Any) -> None:
    """`contents.0.message_content.text` is the text of the first of `contents`."""
    match = _NUMBERED.fullmatch(name)
    if match is None:
        holder[name] = value
        return
    items = holder.setdefault(match.group(1), [])
    number = int(match.group(2))
    if isinstance(items, list) and number <= len(items):
        if number == len(items):
            items.append({})
        _put(items[number], match.group(3), value)


def _message(message: Any) -> Json:
    if not isinstance(message, dict):
        return {"role": "user", "content": str(message)}
    if "parts" not in message:
        return message
    return {"role": message.get("role", "user"), "content": _parts(message["parts"])}


def _parts(parts: Any) -> Any:
    if not isinstance(parts, list):
        return parts
    texts = [p.get("content") for p in parts if isinstance(p, dict) and p.get("type") == "text"]
    return texts[0] if len(parts) == 1 and len(texts) == 1 else parts
