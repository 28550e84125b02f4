"""Workloads written as ids of blocks of tokens: what was shared has the same ids.

Where only text is known, four characters are a token. Ids of blocks of another size are divided, or taken together.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..workload.plan import BlocksPrompt, SessionPlan, Turn, Workload
from ..workload.text import BlockTexts, estimated_tokens
from .hash_trace import BLOCK_TOKENS as HASH_TRACE_BLOCK
from .messages import answer_tokens
from .rendering import Rendering, starts_of
from .weka import BLOCK_TOKENS as WEKA_BLOCK
from .writers import write_lines

_ANSWER_S = 0.001  # how long a call lasts: what starts meanwhile overlaps it


def write_hash_trace(workload: Workload, path: Path) -> None:
    """``{"timestamp", "input_length", "output_length", "hash_ids"}`` lines, by the time they would be sent.

    Lines of a session of several turns have its ``session_id`` and their ``delay`` in ms, as in aiperf's variant.
    """
    ids = _BlockIds()
    rows: list[dict[str, Any]] = []
    texts = BlockTexts()
    for session in workload.sessions:
        starts = starts_of(session, 0.0)
        for index, (turn, tokens, blocks) in enumerate(_blocks(session, HASH_TRACE_BLOCK, texts)):
            row: dict[str, Any] = {"timestamp": round(starts[index] * 1000), "input_length": tokens}
            if length := turn.output_tokens or answer_tokens(turn.recorded):
                row["output_length"] = length
            row["hash_ids"] = [ids.number(block) for block in blocks]
            if len(session.turns) > 1:
                row |= {"session_id": session.session_id, "delay": round(turn.gap_s * 1000, 3)}
            rows.append(row)
    write_lines(path, sorted(rows, key=_timestamp))


def write_weka(workload: Workload, path: Path) -> None:
    """One object a session and line; sub-agents are entries of their own.

    Blocks that several sessions share are numbered for all of them (``"hash_id_scope": "global"``).
    """
    texts = BlockTexts()
    found = [(session, list(_blocks(session, WEKA_BLOCK, texts))) for session in workload.sessions]
    uses = Counter(key for _, turns in found for key in {key for _, _, keys in turns for key in keys})
    shared = any(count > 1 for count in uses.values())
    ids = _BlockIds()
    rows = []
    for session, turns in found:
        ids = ids if shared else _BlockIds()
        rows.append(
            {
                "id": session.session_id,
                "models": ["model"],
                "block_size": WEKA_BLOCK,
                "hash_id_scope": "global" if shared else "local",
                "requests": _weka_requests(session, turns, ids),
            }
        )
    write_lines(path, rows)


class _Requests:
    """A session's calls in Weka's form, which has a main agent, one call after the other, and agents that it sent.

    A sub-agent's turn stands in an entry of its agent if it waits for what it would wait for there; else it is a call
    of the main agent, after all before it. An agent whose end the main agent's next call does not wait for was launched
    without waiting.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._last: int | None = None  # the main agent's last turn
        self._open: dict[str, tuple[dict[str, Any], int]] = {}  # entries since then, and the last turn of each

    def take(self, index: int, turn: Turn, call: dict[str, Any]) -> None:
        """The next turn of the session."""
        agent = turn.agent.removeprefix("sub-")
        entry, last = self._open.get(agent, (None, self._last))
        awaited = () if last is None else (last,)
        if turn.agent == "main" or turn.after != awaited:
            for one, end in self._open.values():
                one["status"] = "completed" if end in turn.after else "async_launched"
            self.rows.append(call)
            self._last, self._open = index, {}
            return
        if entry is None:
            entry = {"t": call["t"], "type": "subagent", "agent_id": agent, "subagent_type": "agent"}
            entry |= {"status": "completed", "models": ["model"], "requests": []}
            self.rows.append(entry)
        entry["requests"].append(call)
        self._open[agent] = entry, index


def _weka_requests(
    session: SessionPlan, turns: list[tuple[Turn, int, list[str]]], ids: _BlockIds
) -> list[dict[str, Any]]:
    requests = _Requests()
    starts = starts_of(session, _ANSWER_S)
    for index, ((turn, tokens, blocks), start) in enumerate(zip(turns, starts, strict=True)):
        call = {
            "t": round(start - session.arrival_s, 6),
            "type": "n",
            "model": "model",
            "in": tokens,
            "out": turn.output_tokens or answer_tokens(turn.recorded) or 1,
            "hash_ids": [ids.number(block) for block in blocks],
            "think_time": turn.gap_s,
            "api_time": _ANSWER_S,
        }
        requests.take(index, turn, call)
    return requests.rows


def _blocks(session: SessionPlan, block_tokens: int, texts: BlockTexts) -> Iterator[tuple[Turn, int, list[str]]]:
    """Each turn's prompt as its number of tokens and the keys of its blocks."""
    rendering = Rendering(session, texts)
    for index, turn in enumerate(session.turns):
        if isinstance(turn.prompt, BlocksPrompt):
            keys = _keys_of_ids(turn.prompt, block_tokens)
            if keys is None:
                keys = _keys_of_pieces(rendering.prompt(index).split(), block_tokens)
            yield turn, turn.prompt.num_tokens, keys
            continue
        text = rendering.prompt(index)
        keys = _keys_of_pieces(text, block_tokens * 4) or [""]
        yield turn, min(max(1, estimated_tokens(text)), len(keys) * block_tokens), keys


def _keys_of_ids(prompt: BlocksPrompt, block_tokens: int) -> list[str] | None:
    """Keys of blocks of another size; None where the sizes do not divide each other, or ids are too few."""
    num, size, space = prompt.num_tokens, prompt.block_tokens, prompt.namespace
    if num > len(prompt.hash_ids) * size:
        return None
    count = -(-num // block_tokens)
    if size % block_tokens == 0:
        parts = size // block_tokens
        if parts == 1:
            return [f"{space}/{one}" for one in prompt.hash_ids[:count]]
        return [f"{space}/{one}/{part}" for one in prompt.hash_ids for part in range(parts)][:count]
    if block_tokens % size == 0:
        together = block_tokens // size
        return [f"{space}/{prompt.hash_ids[at * together : (at + 1) * together]}" for at in range(count)]
    return None


def _keys_of_pieces(pieces: str | list[str], size: int) -> list[str]:
    """A key for each run of so many characters or words, chained: it stands for all before it too."""
    keys: list[str] = []
    for start in range(0, len(pieces), size):
        run = pieces[start : start + size]
        before = keys[-1] if keys else ""
        keys.append(hashlib.sha256((before + (run if isinstance(run, str) else " ".join(run))).encode()).hexdigest())
    return keys


class _BlockIds:
    """Small numbers for block keys, in the order of their first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, key: str) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _timestamp(row: dict[str, Any]) -> float:
    return float(row["timestamp"])
