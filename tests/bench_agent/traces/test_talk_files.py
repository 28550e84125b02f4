"""aiperf's and inference-perf's multi-turn files, and settings that describe conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_files import answered, asked, lines, workload

from sessile.bench_agent.errors import TraceError


def test_aiperf_lines_of_one_session_are_one_conversation(tmp_path: Path) -> None:
    rows = [
        {"session_id": "s", "turns": [{"role": "system", "text": "Rules."}, {"text": "One?", "output_length": 3}]},
        {"session_id": "t", "turns": [{"text": "Other?"}]},
        {"session_id": "s", "turns": [{"text": "Two?", "delay": 500}, {"texts": ["Three?", {"contents": ["a", "b"]}]}]},
    ]
    first, second = workload(lines(tmp_path / "a.jsonl", rows)).sessions
    assert [asked(turn) for turn in first.turns] == [
        [("system", "Rules."), ("user", "One?")], [("user", "Two?")], [("user", "Three?\na\nb")],
    ]  # fmt: skip
    assert [turn.continues for turn in first.turns] == [None, 0, 1]
    assert first.turns[1].gap_s == 0.5 and len(second.turns) == 1


def test_aiperf_timestamps_are_gaps_and_arrivals(tmp_path: Path) -> None:
    rows = [
        {"session_id": "s", "turns": [{"timestamp": 9000, "text": "One?"}, {"timestamp": 10_500, "text": "Two?"}]},
        {"session_id": "t", "turns": [{"timestamp": 8000, "text": "One?"}]},
    ]
    first, second = workload(lines(tmp_path / "a.jsonl", rows)).sessions
    assert first.turns[1].gap_s == 1.5 and (first.arrival_s, second.arrival_s) == (1.0, 0.0)


def test_aiperf_single_turns_of_one_session_follow_each_other_by_themselves(tmp_path: Path) -> None:
    rows = [{"session_id": "s", "text": "One?", "output_length": 4}, {"session_id": "s", "text": "Two?", "delay": 250}]
    (session,) = workload(lines(tmp_path / "a.jsonl", rows)).sessions
    assert [turn.continues for turn in session.turns] == [None, None]
    assert session.turns[1].after == (0,) and session.turns[1].gap_s == 0.25


def test_aiperf_answers_in_the_file_are_recorded(tmp_path: Path) -> None:
    turns = [{"text": "One?"}, {"role": "assistant", "text": "One."}, {"text": "Two?"}]
    (session,) = workload(lines(tmp_path / "a.jsonl", [{"session_id": "s", "turns": turns}])).sessions
    assert len(session.turns) == 2 and answered(session.turns[0]) == ("One.", [])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"session_id": "s", "turns": [{"text": "x"}, {"image": "a.png"}]}, "a turn without text"),
        ({"session_id": "s", "turns": [{"text": "x", "delay": -1}]}, "delay has to be a time"),
        ({"session_id": "s", "turns": [{"text": "x", "output_length": 0}]}, "output_length has to be"),
        ({"session_id": "s", "turns": [{"text": "x", "role": "system"}]}, "a system prompt alone"),
        ({"session_id": "s", "turns": []}, "not a list of turns"),
        ({"session_id": "s", "turns": ["x"]}, "not an object"),
    ],
)
def test_aiperf_a_bad_line_leaves_nothing_behind(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    good = {"session_id": "s", "turns": [{"text": "One?"}]}
    path = lines(tmp_path / "a.jsonl", [good, row])
    with pytest.raises(TraceError, match=rf"a\.jsonl:2: .*{said}"):
        workload(path)
    assert workload(path, skip=True).num_turns == 1


def test_sharegpt_as_others_write_it(tmp_path: Path) -> None:
    tool = {"name": "look", "parameters": {"type": "object"}}
    rows = [
        {
            "id": 5,
            "system": "You mend.",
            "tools": json.dumps([tool]),
            "conversations": [
                {"from": "human", "value": "Late."},
                {"from": "function_call", "value": '{"name": "look"}'},
                {"from": "observation", "value": "Loose."},
                {"from": "gpt", "value": "Turn it."},
            ],
        },
        {"conversations": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]},
    ]
    first, second = workload(lines(tmp_path / "c.json", rows)).sessions
    assert first.session_id == "5" and first.tools[0]["function"] == tool
    assert asked(first.turns[0]) == [("system", "You mend."), ("user", "Late.")]
    assert asked(first.turns[1]) == [("tool", "Loose.")]
    assert answered(second.turns[0]) == ("Ho", [])


def test_settings_keep_their_bounds(tmp_path: Path) -> None:
    wide = {"type": "normal", "mean": 50, "std_dev": 500, "min": 20, "max": 80}
    replay = {
        "num_conversations": 6,
        "turns_per_conversation": {"type": "lognormal", "mean": 4, "std_dev": 9, "min": 2, "max": 5},
    }
    told = {"data": {"otel_trace_replay": {"generate_synthetic": replay | {"output_tokens_per_turn": wide}}}}
    found = workload(lines(tmp_path / "s.json", [told])).sessions
    lengths = {turn.output_tokens for session in found for turn in session.turns}
    assert min(lengths) == 20 and max(lengths) == 80
    assert {len(session.turns) for session in found} <= {2, 3, 4, 5}


def test_a_shared_prefix_for_each_group(tmp_path: Path) -> None:
    section = {
        "num_unique_system_prompts": 2,
        "num_users_per_system_prompt": 3,
        "system_prompt_len": 100,
        "question_len": 10,
        "output_len": 7,
        "enable_multi_turn_chat": True,
    }
    told = {
        "data": {"type": "shared_prefix", "shared_prefix": section},
        "load": {"stages": [{"rate": 6, "duration": 4}]},
    }
    found = workload(lines(tmp_path / "s.json", [told])).sessions
    assert [session.session_id for session in found][:4] == [
        "group-0-user-0", "group-0-user-1", "group-0-user-2", "group-1-user-0",
    ]  # fmt: skip
    assert {len(session.turns) for session in found} == {4}  # 24 requests of 6 users
    assert len({asked(session.turns[0])[0] for session in found}) == 2
    assert {turn.output_tokens for session in found for turn in session.turns} == {7}


@pytest.mark.parametrize(
    "section",
    [
        {"num_conversations": -1},
        {"num_conversations": "many"},
        {"num_conversations": 10**7, "input_tokens_per_turn": {"type": "fixed", "mean": 10**6}},
        {"input_tokens_per_turn": {"type": "zipf", "mean": 1}},
        {"input_tokens_per_turn": {"type": "normal", "mean": -1}},
        {"input_tokens_per_turn": "long"},
    ],
)
def test_impossible_settings_name_the_field(section: dict[str, Any], tmp_path: Path) -> None:
    path = lines(tmp_path / "s.json", [{"conversation_replay": section}])
    with pytest.raises(TraceError, match=r"s\.json: .*\(change the settings\)"):
        workload(path)


def test_yaml_of_something_else(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "c.yaml"
    for text, said in (("a: [", "not YAML"), ("agent: {}\n", "no settings"), ("- .nan\n", "no settings")):
        path.write_text(text)
        with pytest.raises(TraceError, match=said):
            workload(path)
