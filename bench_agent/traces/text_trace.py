"""Requests with their whole rendered prompt: ``{"timestamp" µs, "input", "output", "session_id"}``, one a line.

Lines of a session are put in the order of their timestamps and run one after the other. The gap before a request is
the time since the one before it started, which is all that the trace tells.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..workload.plan import Message, SessionPlan, TextPrompt, Turn
from ..workload.text import estimated_tokens
from .lineage import since_the_first
from .rows import objects
from .source import BadLines, Unusable, files_of, name_of, number_of


class _Request(msgspec.Struct, frozen=True):
    """A line. ``stamp`` in seconds."""

    stamp: float
    prompt: str
    output: str


def sniff(first: object) -> bool:
    """Whether a first value is of this format."""
    return isinstance(first, dict) and {"timestamp", "input", "output"} <= first.keys()


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """Sessions by the time of their first request."""
    found: dict[str, list[_Request]] = {}
    for file in files_of(path, (".jsonl",)):
        for place, row in objects(file, bad):
            with bad.leaving_out(place):
                request = _request(row)
                found.setdefault(name_of(row, ("session_id",), file.stem), []).append(request)
    for requests in found.values():
        requests.sort(key=lambda request: request.stamp)
    empty = sum(not request.prompt for requests in found.values() for request in requests)
    if empty:
        bad.remarks["requests with an empty prompt"] += empty
    sessions = sorted(found.items(), key=lambda session: session[1][0].stamp)
    return since_the_first(
        (SessionPlan(session_id=name, turns=_turns(requests)), requests[0].stamp) for name, requests in sessions
    )


def _request(row: dict[str, Any]) -> _Request:
    stamp, prompt, output = number_of(row.get("timestamp")), row.get("input"), row.get("output")
    if stamp is None or not isinstance(prompt, str) or not isinstance(output, str):
        raise Unusable("timestamp, input and output are needed: a number and two texts")
    return _Request(stamp / 1e6, prompt, output)


def _turns(requests: list[_Request]) -> tuple[Turn, ...]:
    """Requests without a prompt cannot be sent again; the time before them goes to the next one's gap."""
    sent = [request for request in requests if request.prompt]
    return tuple(
        Turn(
            prompt=TextPrompt(request.prompt),
            after=(index - 1,) if index else (),
            gap_s=round(request.stamp - sent[index - 1].stamp, 6) if index else 0.0,
            output_tokens=estimated_tokens(request.output) or None,
            recorded=Message("assistant", request.output),
        )
        for index, request in enumerate(sent)
    )
