"""Requests without text: ``{"timestamp" ms, "input_length", "output_length", "hash_ids"}``, one a line (Mooncake).

A hash id stands for a block of 512 tokens; where most lines of a file have more ids than such blocks, of the power of
two that fits them. Each line is a session of one turn, unless the lines say ``session_id`` (as aiperf's variant does,
with ``delay`` in ms) or ``parent_chat_id`` (Bailian's: blocks of 16 tokens, timestamps in seconds): then the lines of a
session are its turns. A line of a session without ids says what it adds, and its prompt is all that came before it too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..workload.plan import BlocksPrompt, SessionPlan, Turn
from .lineage import since_the_first
from .rows import objects
from .source import BadLines, Unusable, files_of, name_of, number_of, tokens_of, wait_of

BLOCK_TOKENS = 512
_BAILIAN_BLOCK = 16
_SIZES = (BLOCK_TOKENS, 16, 32, 64, 128, 256, 1024, 2048, 8, 4, 2, 1)


class _Request(msgspec.Struct, frozen=True):
    """A line. ``block``: tokens of an id's block. ``stamp`` and ``delay`` in seconds.

    No ids: the trace does not say what is shared.
    """

    hash_ids: tuple[int, ...]
    block: int
    tokens: int
    output: int | None
    stamp: float | None
    delay: float | None


def sniff(first: object) -> bool:
    """Whether a first value is of this format."""
    return isinstance(first, dict) and "input_length" in first and ("hash_ids" in first or "output_length" in first)


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """Sessions in the order of their first lines."""
    found: dict[str, list[_Request]] = {}
    chats: dict[object, str] = {}
    for file in files_of(path, (".jsonl", ".json")):
        block = _block_size(row for _, row in objects(file, BadLines(skip=True)))
        for place, row in objects(file, bad):
            with bad.leaving_out(place):
                request = _request(row, _BAILIAN_BLOCK if "chat_id" in row else block)
                name = _session_of(row, place.session_name, chats)
                found.setdefault(name, []).append(request)
    return since_the_first(_session(name, requests) for name, requests in found.items())


def _block_size(rows: Iterable[dict[str, Any]]) -> int:
    """The size of block that most lines fit: their ids fill it up to the last, which may be cut."""
    fits = dict.fromkeys(_SIZES, 0)
    for row in rows:
        ids, length = row.get("hash_ids"), number_of(row.get("input_length"))
        if isinstance(ids, list) and ids and length is not None:
            for size in _SIZES:
                fits[size] += (len(ids) - 1) * size < length <= len(ids) * size
    return max(_SIZES, key=lambda size: fits[size])


def _session_of(row: dict[str, Any], default: str, chats: dict[object, str]) -> str:
    if "chat_id" not in row:
        return name_of(row, ("session_id",), default)
    name = chats.get(row.get("parent_chat_id"), f"chat-{row['chat_id']}")
    chats[row["chat_id"]] = name
    return name


def _request(row: dict[str, Any], block: int) -> _Request:
    tokens, stamp = tokens_of(row, "input_length", least=1), number_of(row.get("timestamp"))
    if tokens is None or (stamp is None and row.get("timestamp") is not None):
        raise Unusable("input_length (1 or more) and timestamp have to be numbers")
    ids = row.get("hash_ids") or []
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise Unusable("hash_ids has to be a list of whole numbers")
    if ids and tokens > len(ids) * block:
        raise Unusable(f"{len(ids)} hash ids of {block} tokens cannot hold {tokens} tokens")
    unit = 1.0 if "chat_id" in row else 0.001
    output = tokens_of(row, "output_length")
    return _Request(
        hash_ids=tuple(ids),
        block=block,
        tokens=tokens,
        output=None if output is None else max(1, output),
        stamp=None if stamp is None else stamp * unit,
        delay=wait_of(row, "delay", 0.001),
    )


def _session(name: str, requests: list[_Request]) -> tuple[SessionPlan, float | None]:
    """A session, and when it began. Its lines are in the order of their times, where all have one."""
    if all(request.stamp is not None for request in requests):
        requests = sorted(requests, key=lambda request: request.stamp or 0.0)
    turns: list[Turn] = []
    before = 0  # tokens of the conversation so far
    for index, request in enumerate(requests):
        tokens = request.tokens if request.hash_ids else before + request.tokens
        space = "" if request.hash_ids else f"session {name}"
        turns.append(
            Turn(
                prompt=BlocksPrompt(request.hash_ids, request.block, tokens, space),
                after=(index - 1,) if index else (),
                gap_s=_gap(requests[index - 1], request) if index else 0.0,
                output_tokens=request.output,
            )
        )
        before = tokens + (request.output or 0)
    return SessionPlan(session_id=name, turns=tuple(turns)), requests[0].stamp


def _gap(before: _Request, request: _Request) -> float:
    """What the line says; else the time since the one before it started, which is all that it tells."""
    if request.delay is not None:
        return request.delay
    if before.stamp is None or request.stamp is None:
        return 0.0
    return round(max(0.0, request.stamp - before.stamp), 6)
