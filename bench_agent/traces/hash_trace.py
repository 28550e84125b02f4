"""Requests without text: ``{"timestamp" ms, "input_length", "output_length", "hash_ids"}``, one a line (Mooncake).

A hash id stands for 512 tokens. Each line is a session of one turn, unless the lines say ``session_id`` (as aiperf's
variant does, with ``delay`` in ms): then the lines of a session are its turns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..workload.plan import BlocksPrompt, SessionPlan, Turn
from .source import BadLines, Unusable, files_of, json_lines, number_of

BLOCK_TOKENS = 512


def sniff(first: object) -> bool:
    """Whether a first object is of this format."""
    return isinstance(first, dict) and {"input_length", "hash_ids"} <= first.keys()


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """Sessions in the order of the lines."""
    sessions: dict[str, SessionPlan] = {}
    for file in files_of(path, (".jsonl",)):
        for number, row in json_lines(file, bad):
            with bad.leaving_out(file, number):
                turn, arrival = _turn(row)
                name = str(row.get("session_id", f"{file.stem}-{number}"))
                if name in sessions:
                    sessions[name] = _appended(sessions[name], turn, row)
                else:
                    sessions[name] = SessionPlan(session_id=name, turns=(turn,), arrival_s=arrival)
    return list(sessions.values())


def _turn(row: dict[str, Any]) -> tuple[Turn, float]:
    length, output = number_of(row.get("input_length")), number_of(row.get("output_length"))
    stamp, ids = number_of(row.get("timestamp", 0)), row.get("hash_ids")
    if length is None or output is None or stamp is None or length < 1:
        raise Unusable("input_length (1 or more), output_length and timestamp have to be numbers")
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise Unusable("hash_ids has to be a list of whole numbers")
    if length > len(ids) * BLOCK_TOKENS:
        raise Unusable(f"{len(ids)} hash ids of {BLOCK_TOKENS} tokens cannot hold {length:.0f} tokens")
    prompt = BlocksPrompt(tuple(ids), BLOCK_TOKENS, int(length))
    return Turn(prompt=prompt, output_tokens=max(1, int(output))), stamp / 1000


def _appended(session: SessionPlan, turn: Turn, row: dict[str, Any]) -> SessionPlan:
    last = len(session.turns) - 1
    gap = (number_of(row.get("delay", 0)) or 0.0) / 1000
    return msgspec.structs.replace(
        session, turns=(*session.turns, msgspec.structs.replace(turn, after=(last,), gap_s=gap))
    )
