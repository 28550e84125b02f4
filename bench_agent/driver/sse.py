"""Server-sent events of OpenAI's streams: bytes in, events out."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_LINE_END = re.compile(rb"[\r\n]")  # \r\n is both, with an empty line between


class FunctionPiece(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class CallPiece(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: FunctionPiece | None = None


class Delta(msgspec.Struct):
    """Reasoning has one name or the other (vLLM's newer versions say ``reasoning``)."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallPiece] | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    text: str | None = None
    logprobs: Any = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class WireUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    prompt_tokens_by_source: dict[str, int] | None = None


class Chunk(msgspec.Struct):
    """One event. Fields that the harness has no use for are passed over."""

    choices: list[Choice] | None = None
    usage: WireUsage | None = None
    error: Any = None


class EventReader:
    """Cuts a stream of bytes into events. ``begins``: the first bytes; ``events``: how many there were, the last one
    included; ``done``: that one was here."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(Chunk)
        self._rest = b""
        self.begins = b""
        self.events = 0
        self.done = False

    def feed(self, raw: bytes) -> list[Chunk]:
        """The events that are complete now. Raises msgspec.DecodeError for an event that is not one of the protocol."""
        self.begins = self.begins or raw[:200]
        *lines, self._rest = _LINE_END.split(self._rest + raw)
        return self._events(lines)

    def end(self) -> list[Chunk]:
        """The bytes are over: the last line may lack its end. Raises msgspec.DecodeError."""
        line, self._rest = self._rest, b""
        return self._events([line])

    def _events(self, lines: list[bytes]) -> list[Chunk]:
        found: list[Chunk] = []
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            self.events += bool(payload)
            if payload == b"[DONE]":
                self.done = True
            elif payload:
                found.append(self._decoder.decode(payload))
        return found
