"""The output of a response as it grows: items, and the events that tell of them."""

from __future__ import annotations

import uuid
from typing import Any

from ....sessions.manager.turn_events import TextDelta, TurnDelta
from ...text.tool_calls import MalformedCall, ReasoningDelta, ToolCallArguments, ToolCallStarted
from ..answers import MalformedToolCall
from .answers import OutputItem, Status

Event = dict[str, Any]
"""An event without its sequence number."""


class _OpenItem:
    """An item that still grows. ``call``: the number of the tool call that it is."""

    def __init__(self, index: int, item: OutputItem, call: int | None = None) -> None:
        self.index = index
        self.item = item
        self.call = call
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.item["id"], "output_index": self.index, **fields}


class ResponseOutput:
    """Puts a turn's deltas into items; each step gives the events that tell of it."""

    def __init__(self) -> None:
        self.items: list[OutputItem] = []  # those that are complete
        self.malformed: list[MalformedToolCall] = []
        self._open: _OpenItem | None = None
        self._next_index = 0

    def take(self, delta: TurnDelta) -> list[Event]:
        match delta:
            case TextDelta(text=""):
                return []
            case TextDelta(text=text):
                opened = self._opened("message", {"role": "assistant", "content": []})
                return [*opened, self._grown(text, "response.output_text.delta", content_index=0, logprobs=[])]
            case ReasoningDelta(text=text):
                opened = self._opened("reasoning", {"summary": [], "content": []})
                return [*opened, self._grown(text, "response.reasoning_text.delta", content_index=0)]
            case ToolCallStarted(index=index, id=call_id, name=name):
                call = {"call_id": call_id, "name": name, "arguments": ""}
                return [*self.close("completed"), *self._start("function_call", call, index)]
            case ToolCallArguments(fragment=fragment):
                return [self._grown(fragment, "response.function_call_arguments.delta")]
            case MalformedCall(text=text, reason=reason, index=index):
                self.malformed.append(MalformedToolCall(text=text, reason=reason))
                void = self._open is not None and index is not None and self._open.call == index
                return self._void() if void else []

    def close(self, status: Status) -> list[Event]:
        """The end of the item that is open, if one is."""
        if self._open is None:
            return []
        growing, self._open = self._open, None
        text, kind = growing.text, growing.item["type"]
        if kind == "function_call":
            item = {**growing.item, "arguments": text, "status": status}
            done = [growing.event("response.function_call_arguments.done", name=item["name"], arguments=text)]
        else:
            part = _part(kind, text)
            item = {**growing.item, "content": [part], "status": status}
            name = "response.output_text.done" if kind == "message" else "response.reasoning_text.done"
            more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
            done = [
                growing.event(name, content_index=0, text=text, **more),
                growing.event("response.content_part.done", content_index=0, part=part),
            ]
        self.items.append(item)
        return [*done, {"type": "response.output_item.done", "output_index": growing.index, "item": item}]

    def _void(self) -> list[Event]:
        """A call that was begun and is none: told to be incomplete, and not part of the output."""
        assert self._open is not None
        growing, self._open = self._open, None
        item = {**growing.item, "arguments": growing.text, "status": "incomplete"}
        return [{"type": "response.output_item.done", "output_index": growing.index, "item": item}]

    def _opened(self, kind: str, fields: OutputItem) -> list[Event]:
        """Make sure that an item of this kind is open."""
        if self._open is not None and self._open.item["type"] == kind:
            return []
        return [*self.close("completed"), *self._start(kind, fields)]

    def _start(self, kind: str, fields: OutputItem, call: int | None = None) -> list[Event]:
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        item = {"id": f"{prefix}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **fields}
        growing = self._open = _OpenItem(self._next_index, item, call)
        self._next_index += 1
        events: list[Event] = [{"type": "response.output_item.added", "output_index": growing.index, "item": item}]
        if kind != "function_call":
            events.append(growing.event("response.content_part.added", content_index=0, part=_part(kind, "")))
        return events

    def _grown(self, text: str, kind: str, **fields: Any) -> Event:
        assert self._open is not None
        self._open.pieces.append(text)
        return self._open.event(kind, delta=text, **fields)


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "message":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": text}
