"""Items of the Responses API to messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ....sessions.errors import RequestError
from ....sessions.manager.validation import require_few_messages, require_identifier
from ....sessions.messages import Message, Role, ToolCall
from ..wrong_value import wrong_value
from .bodies import FunctionCallItem, FunctionOutputItem, InputPart, Item, MessageItem, ReasoningItem

_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_FILLED_IN = ("type", "id", "status")  # where an item has none
_KNOWN = ("message", "function_call", "function_call_output", "reasoning")


def messages_of(given: str | Sequence[dict[str, Any]], field: str = "input") -> tuple[Message, ...]:
    """The messages that an input says. Raises RequestError naming the item that cannot be read."""
    if isinstance(given, str):
        return (Message(role=Role.USER, content=given),) if given else ()
    require_few_messages(given, field)
    return tuple(
        _grouped([(_read(item, f"{field}[{index}]"), f"{field}[{index}]") for index, item in enumerate(given)])
    )


def items_of(given: str | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The input as items, each with an id, as it is listed afterwards."""
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}] if given else []
    return [
        {
            "type": "message",
            "id": f"item_{index}",
            "status": "completed",
            **{name: value for name, value in item.items() if value is not None or name not in _FILLED_IN},
        }
        for index, item in enumerate(given)
    ]


def _read(item: dict[str, Any], where: str) -> Item:
    kind = item.get("type") or "message"
    if kind not in _KNOWN:
        raise RequestError(
            f"{where} is of type {kind}, which cannot be read here",
            field=f"{where}.type",
            remedy="send messages, function calls and their outputs",
        )
    try:
        read: Item = msgspec.convert({**item, "type": kind}, Item)
    except msgspec.ValidationError as error:
        raise wrong_value(Item, str(error), where) from error
    return read


class _Answer:
    """Items that together are one message of the assistant: reasoning, then text, then calls."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []

    def takes(self, item: MessageItem | FunctionCallItem | ReasoningItem) -> bool:
        """Whether the item can belong to this answer, after what came before."""
        match item:
            case ReasoningItem():
                return not (self._texts or self._calls)
            case MessageItem():
                return not self._texts and not self._calls
            case FunctionCallItem():
                return True

    def add(self, item: MessageItem | FunctionCallItem | ReasoningItem, where: str) -> None:
        match item:
            case ReasoningItem(content=content):
                self._reasoning.append(_text(content or [], f"{where}.content"))
            case MessageItem(content=content):
                self._texts.append(_text(content, f"{where}.content"))
            case FunctionCallItem(call_id=call_id, name=name, arguments=arguments):
                require_identifier(name, f"{where}.name")
                self._calls.append(ToolCall(id=call_id, name=name, arguments=arguments))

    def message(self) -> Message:
        return Message(
            role=Role.ASSISTANT,
            content="".join(self._texts),
            tool_calls=tuple(self._calls),
            reasoning="\n".join(self._reasoning) or None,
        )


def _grouped(items: Sequence[tuple[Item, str]]) -> Iterator[Message]:
    answer: _Answer | None = None
    for item, where in items:
        if _is_answer(item):
            assert not isinstance(item, FunctionOutputItem)
            if answer is not None and not answer.takes(item):
                yield answer.message()
                answer = None
            answer = answer or _Answer()
            answer.add(item, where)
            continue
        if answer is not None:
            yield answer.message()
            answer = None
        match item:
            case MessageItem(role=role, content=content):
                yield Message(role=Role(role), content=_text(content, f"{where}.content"))
            case FunctionOutputItem(call_id=call_id, output=output):
                require_identifier(call_id, f"{where}.call_id")
                yield Message(role=Role.TOOL, content=_text(output, f"{where}.output"), tool_call_id=call_id)
            case _:
                raise AssertionError("the other items are answers")
    if answer is not None:
        yield answer.message()


def _is_answer(item: Item) -> bool:
    match item:
        case MessageItem(role=role):
            return role == "assistant"
        case FunctionOutputItem():
            return False
        case _:
            return True


def _text(content: str | Sequence[InputPart], where: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        if part.type == "refusal":
            texts.append(part.refusal)
        elif part.type in _TEXT_PARTS:
            texts.append(part.text)
        else:
            raise RequestError(
                f"a part of type {part.type} cannot be read here", field=f"{where}[{index}]", remedy="send text"
            )
    return "\n".join(texts)
