"""Requests with their whole rendered prompt: ``{"timestamp" µs, "input", "output", "session_id"}``, one a line.

Lines of a session are put in the order of their timestamps and run one after the other. The gap before a request is
the time since the one before it started, which is all that the trace tells.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..workload.plan import Message, SessionPlan, TextPrompt, Turn
from ..workload.text import estimated_tokens
from .source import BadLines, Unusable, files_of, json_lines, number_of


def sniff(first: object) -> bool:
    """Whether a first object is of this format."""
    return isinstance(first, dict) and {"timestamp", "input", "output"} <= first.keys()


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """Sessions by the time of their first request."""
    requests: dict[str, list[tuple[float, str, str]]] = {}
    for file in files_of(path, (".jsonl",)):
        for number, row in json_lines(file, bad):
            with bad.leaving_out(file, number):
                session, request = _request(row, file.stem)
                requests.setdefault(session, []).append(request)
    starts = {session: min(found)[0] for session, found in requests.items()}
    first = min(starts.values(), default=0.0)
    return [
        SessionPlan(session_id=session, turns=_turns(requests[session]), arrival_s=round(starts[session] - first, 6))
        for session in sorted(requests, key=lambda name: starts[name])
    ]


def _request(row: dict[str, Any], default_session: str) -> tuple[str, tuple[float, str, str]]:
    stamp, prompt, output = number_of(row.get("timestamp")), row.get("input"), row.get("output")
    if stamp is None or not isinstance(prompt, str) or not isinstance(output, str):
        raise Unusable("timestamp, input and output are needed: a number and two texts")
    return str(row.get("session_id", default_session)), (stamp / 1e6, prompt, output)


def _turns(requests: list[tuple[float, str, str]]) -> tuple[Turn, ...]:
    """Requests without a prompt cannot be sent again; the time before them goes to the next one's gap."""
    ordered = [request for request in sorted(requests) if request[1]]
    return tuple(
        Turn(
            prompt=TextPrompt(prompt),
            after=(index - 1,) if index else (),
            gap_s=round(stamp - ordered[index - 1][0], 6) if index else 0.0,
            output_tokens=estimated_tokens(output) or None,
            recorded=Message("assistant", output),
        )
        for index, (stamp, prompt, output) in enumerate(ordered)
    )
