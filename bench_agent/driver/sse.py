"""Server-sent events of OpenAI's streams: bytes in, events out."""

from __future__ import annotations

from typing import Any

import msgspec


class FunctionPiece(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class CallPiece(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: FunctionPiece | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
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

    choices: list[Choice] = []
    usage: WireUsage | None = None
    error: Any = None
    timings: dict[str, float] | None = None


class EventReader:
    """Cuts a stream of bytes into events."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(Chunk)
        self._rest = b""

    def feed(self, raw: bytes) -> list[Chunk]:
        """The events that are complete now. Raises msgspec.DecodeError for an event that is not JSON."""
        found: list[Chunk] = []
        *lines, self._rest = (self._rest + raw).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                payload = line[5:].strip()
                if payload and payload != b"[DONE]":
                    found.append(self._decoder.decode(payload))
        return found
