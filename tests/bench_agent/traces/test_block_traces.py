"""Traces of block ids: sizes of blocks, sessions, shared text, sub-agents."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from trace_files import lines, through, workload

from sessile.bench_agent.errors import TraceError
from sessile.bench_agent.workload.plan import BlocksPrompt, SessionPlan, Workload
from sessile.bench_agent.workload.text import BlockTexts


def prompts(session: SessionPlan) -> list[BlocksPrompt]:
    found = [turn.prompt for turn in session.turns]
    assert all(isinstance(prompt, BlocksPrompt) for prompt in found)
    return found  # type: ignore[return-value]


def texts(found: Workload) -> list[str]:
    made = BlockTexts()
    return [made.text(prompt) for session in found.sessions for prompt in prompts(session)]


def shared_words(found: Workload) -> list[int]:
    """How many first words the prompts of the trace have in common, each with the one before."""
    words = [text.split() for text in texts(found)]
    return [
        next((at for at, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
        for a, b in pairwise(words)
    ]


def mooncake(*rows: tuple[float, int, list[int]]) -> list[dict[str, Any]]:
    return [{"timestamp": at, "input_length": n, "output_length": 9, "hash_ids": ids} for at, n, ids in rows]


def test_bailians_chats_are_sessions_of_blocks_of_16(tmp_path: Path) -> None:
    rows = [
        {
            "chat_id": chat,
            "parent_chat_id": parent,
            "timestamp": at,
            "input_length": n,
            "output_length": 5,
            "hash_ids": ids,
        }
        for chat, parent, at, n, ids in (
            (7, -1, 61.25, 40, [1, 2, 3]),
            (9, -1, 61.5, 16, [4]),
            (8, 7, 70.25, 64, [1, 2, 5, 6]),
        )
    ]
    first, second = workload(lines(tmp_path / "b.jsonl", rows)).sessions
    assert [prompt.num_tokens for prompt in prompts(first)] == [40, 64]
    assert {prompt.block_tokens for prompt in prompts(first)} == {16}
    assert first.turns[1].gap_s == 9.0
    assert (first.arrival_s, second.arrival_s) == (0.0, 0.25)


def test_blocks_of_another_size_are_seen_from_the_lengths(tmp_path: Path) -> None:
    rows = mooncake((0, 130, [1, 2, 3]), (5, 200, [1, 2, 3, 4]), (6, 64, [1]))
    found = workload(lines(tmp_path / "h.jsonl", rows))
    assert {prompt.block_tokens for session in found.sessions for prompt in prompts(session)} == {64}
    assert shared_words(found) == [130, 64]  # the third block is cut at two words, which the longer prompt has too


def test_arrivals_count_from_the_first_line(tmp_path: Path) -> None:
    rows = mooncake((1_700_000_002_000, 500, [1]), (1_700_000_000_000, 600, [1, 2]))
    assert [session.arrival_s for session in workload(lines(tmp_path / "h.jsonl", rows)).sessions] == [2.0, 0.0]


def test_lengths_alone_share_nothing_between_sessions_and_grow_within_one(tmp_path: Path) -> None:
    rows = [
        {"session_id": "s", "input_length": 100, "output_length": 10},
        {"input_length": 100, "output_length": 10},
        {"session_id": "s", "input_length": 50, "output_length": 10, "delay": 250},
    ]
    found = workload(lines(tmp_path / "h.jsonl", rows))
    first, second = found.sessions
    assert [prompt.num_tokens for prompt in prompts(first)] == [100, 160] and first.turns[1].gap_s == 0.25
    made = BlockTexts()
    short, long = (made.text(prompt) for prompt in prompts(first))
    assert long.startswith(short) and made.text(prompts(second)[0]) != short


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"timestamp": 0, "input_length": -5, "output_length": 1, "hash_ids": [1]}, "input_length has to be a number"),
        ({"timestamp": 0, "input_length": 10**18, "output_length": 1, "hash_ids": [1]}, "input_length has to be"),
        ({"timestamp": 0, "input_length": True, "output_length": 1, "hash_ids": [1]}, "input_length has to be"),
        ({"timestamp": 0, "input_length": 5, "output_length": -1, "hash_ids": [1]}, "output_length has to be"),
        ({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": ["x"]}, "whole numbers"),
        ({"timestamp": "x", "input_length": 5, "output_length": 1, "hash_ids": [1]}, "timestamp"),
        ({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1], "delay": -1}, "delay has to be"),
    ],
)
def test_impossible_numbers_are_bad_lines(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "h.jsonl", [*mooncake((0, 500, [1])), row])
    with pytest.raises(TraceError, match=rf"h\.jsonl:2: .*{said}"):
        workload(path)
    assert len(workload(path, skip=True).sessions) == 1


def conversation(**more: Any) -> dict[str, Any]:
    inner = {"t": 0.0, "type": "n", "in": 64, "out": 3, "hash_ids": [9]}
    deep = {"t": 1.0, "type": "subagent", "agent_id": "deep", "requests": [inner]}
    return {
        "id": "w",
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [
            {"t": 0.0, "type": "n", "in": 100, "out": 5, "hash_ids": [1, 2]},
            {
                "t": 2.0,
                "type": "subagent",
                "agent_id": "a",
                "requests": [{**inner, "t": 0.5}, deep, {**inner, "t": 4.0}],
            },
            {"t": 2.5, "type": "subagent", "agent_id": "b", "status": "async_launched", "requests": [inner]},
            {"t": 9.0, "type": "n", "in": 128, "out": 5, "hash_ids": [1, 2]},
        ],
    } | more


def test_sub_agents_of_sub_agents_and_those_nobody_waits_for(tmp_path: Path) -> None:
    (session,) = workload(lines(tmp_path / "w.jsonl", [conversation()])).sessions
    assert [turn.agent for turn in session.turns] == ["main", "sub-a", "sub-deep", "sub-a", "sub-b", "main"]
    assert [turn.after for turn in session.turns] == [(), (0,), (1,), (1, 2), (0,), (0, 3)]


def test_the_scope_of_block_ids(tmp_path: Path) -> None:
    found = workload(lines(tmp_path / "local.jsonl", [conversation(), conversation(id="v")]))
    first, second = (prompts(session)[0] for session in found.sessions)
    assert first.namespace != second.namespace
    rows = [conversation(hash_id_scope="global"), conversation(id="v", hash_id_scope="global")]
    found = workload(lines(tmp_path / "global.jsonl", rows))
    first, second = (prompts(session)[0] for session in found.sessions)
    assert first == second


@pytest.mark.parametrize("call", [{"in": 1e15, "out": 1}, {"in": 5, "out": -2}, {"in": 5, "out": 1, "think_time": -3}])
def test_impossible_calls_are_bad_lines(call: dict[str, Any], tmp_path: Path) -> None:
    path = lines(tmp_path / "w.jsonl", [conversation(), conversation(requests=[{"t": 0.0, "hash_ids": [], **call}])])
    with pytest.raises(TraceError, match=r"w\.jsonl:2: "):
        workload(path)


@pytest.mark.parametrize(("there", "back"), [("weka", "hash"), ("hash", "weka")])
def test_tokens_and_shared_text_survive_blocks_of_other_sizes(there: str, back: str, tmp_path: Path) -> None:
    """512 tokens a block become eight blocks of 64, and one again; what sessions share they share still."""
    rows = mooncake((0, 1300, [0, 1, 2]), (10, 1000, [0, 3]), (20, 1530, [0, 1, 4]), (30, 1024, [0, 1]))
    found = workload(lines(tmp_path / "h.jsonl", rows))
    once = through(found, there, tmp_path / "once.jsonl")
    twice = through(once, back, tmp_path / "twice.jsonl")
    for again in (once, twice):
        assert [prompt.num_tokens for session in again.sessions for prompt in prompts(session)] == [
            1300,
            1000,
            1530,
            1024,
        ]
        assert shared_words(again) == shared_words(found)
        assert [turn.output_tokens for session in again.sessions for turn in session.turns] == [9] * 4


def test_sessions_of_several_turns_stay_sessions(tmp_path: Path) -> None:
    found = workload(lines(tmp_path / "w.jsonl", [conversation(), conversation(id="v")]))
    again = through(found, "hash", tmp_path / "h.jsonl")
    assert [len(session.turns) for session in again.sessions] == [6, 6]
    gaps = [sorted(turn.gap_s for turn in session.turns) for session in (again.sessions[0], found.sessions[0])]
    assert gaps[0] == gaps[1]


def test_each_line_of_a_session_in_two_files_has_the_blocks_of_its_file(tmp_path: Path) -> None:
    for name, size, ids in (("a", 512, [0, 1]), ("b", 16, [0, 1, 2])):
        row = {"session_id": "s", "input_length": size * len(ids), "output_length": 9, "hash_ids": ids}
        lines(tmp_path / "t" / f"{name}.jsonl", [row])
    (session,) = workload(tmp_path / "t").sessions
    assert [(prompt.block_tokens, prompt.num_tokens) for prompt in prompts(session)] == [(512, 1024), (16, 48)]
