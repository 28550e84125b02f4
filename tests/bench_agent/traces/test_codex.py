"""Codex's rollout files, of each of its generations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_files import answered, asked, lines, workload


def at(second: float) -> str:
    return f"2026-03-01T10:00:{second:06.3f}Z"


def item(second: float, **payload: Any) -> dict[str, Any]:
    return {"timestamp": at(second), "type": "response_item", "payload": payload}


def said(second: float, role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return item(second, type="message", role=role, content=[{"type": kind, "text": text}])


def event(second: float, **payload: Any) -> dict[str, Any]:
    return {"timestamp": at(second), "type": "event_msg", "payload": payload}


def counted(second: float, asked: int, out: int) -> dict[str, Any]:
    usage = {"input_tokens": asked, "cached_input_tokens": 0, "output_tokens": out}
    return event(second, type="token_count", info={"total_token_usage": usage, "last_token_usage": usage})


HEAD = {
    "timestamp": at(0),
    "type": "session_meta",
    "payload": {"id": "c-1", "base_instructions": {"text": "Be brief."}},
}


def test_bare_lines_of_2025(tmp_path: Path) -> None:
    rows = [
        {"id": "old-1", "timestamp": "2025-08-18T01:16:13.522Z", "instructions": None, "git": {}},
        {"record_type": "state"},
        {"type": "message", "id": None, "role": "user", "content": [{"type": "input_text", "text": "List."}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "k"},
        {"record_type": "state"},
        {"type": "function_call_output", "call_id": "k", "output": '{"output":"clock.py","metadata":{"exit_code":0}}'},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One file."}]},
    ]
    (session,) = workload(lines(tmp_path / "rollout-x.jsonl", rows)).sessions
    assert session.session_id == "old-1"
    assert [answered(turn) for turn in session.turns] == [("", ["shell"]), ("One file.", [])]
    assert asked(session.turns[1]) == [("tool", '{"output":"clock.py","metadata":{"exit_code":0}}')]


def test_the_first_program_wrote_one_object(tmp_path: Path) -> None:
    told = {
        "session": {"id": "ts-1", "timestamp": "2025-05-01T10:00:00Z", "instructions": "Be kind."},
        "items": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]},
        ],
    }
    path = tmp_path / "rollout-2025-05-01.json"
    path.write_text(json.dumps(told, indent=1))
    (session,) = workload(path).sessions
    assert session.session_id == "ts-1"
    assert asked(session.turns[0]) == [("system", "Be kind."), ("user", "Hello")]


def test_parallel_calls_and_a_count_that_comes_after_the_tools(tmp_path: Path) -> None:
    rows = [
        HEAD,
        {"timestamp": at(0), "type": "turn_context", "payload": {"model": "m"}},
        said(0.1, "developer", "Rules."),
        said(0.2, "user", "Look."),
        item(1, type="function_call", name="a", arguments="{}", call_id="1"),
        item(1, type="custom_tool_call", name="apply_patch", input="*** Begin", call_id="2"),
        item(2, type="function_call_output", call_id="1", output={"content": "one", "success": True}),
        item(3, type="custom_tool_call_output", call_id="2", output=[{"type": "input_text", "text": "two"}]),
        counted(3.1, 9000, 77),
        said(5, "assistant", "Both."),
        counted(5.1, 9100, 5),
        counted(5.2, 9100, 5),
    ]
    (session,) = workload(lines(tmp_path / "rollout-x.jsonl", rows)).sessions
    assert asked(session.turns[0])[:2] == [("system", "Be brief."), ("system", "Rules.")]
    assert [turn.output_tokens for turn in session.turns] == [77, 5]
    assert answered(session.turns[0]) == ("", ["a", "apply_patch"])
    assert asked(session.turns[1]) == [("tool", "one"), ("tool", "two")]
    assert session.turns[1].gap_s == pytest.approx(2.0)
    assert session.unrecorded_tokens > 8900


def test_an_answer_that_was_counted_before_anything_was_asked_goes_with_what_is_asked_next(tmp_path: Path) -> None:
    head = {"timestamp": at(0), "type": "session_meta", "payload": {"id": "c-2"}}
    rows = [head, said(1, "assistant", "Hello."), counted(2, 90, 2)]
    rows += [said(3, "user", "List."), said(4, "assistant", "One file."), counted(5, 100, 3)]
    (session,) = workload(lines(tmp_path / "rollout-x.jsonl", rows)).sessions
    (turn,) = session.turns
    assert asked(turn) == [("assistant", "Hello."), ("user", "List.")]
    assert (answered(turn), turn.output_tokens) == (("One file.", []), 3)
    assert 90 < session.unrecorded_tokens < 100


def test_a_rollback_goes_on_from_before(tmp_path: Path) -> None:
    rows = [HEAD]
    for number, text in enumerate(("one", "two", "three")):
        rows += [said(number * 3 + 1, "user", text), said(number * 3 + 2, "assistant", f"re {text}")]
    rows += [event(10, type="thread_rolled_back", num_turns=2), said(11, "user", "other"), said(12, "assistant", "re")]
    (session,) = workload(lines(tmp_path / "rollout-x.jsonl", rows)).sessions
    assert [turn.continues for turn in session.turns] == [None, 0, 1, 0]
    assert session.turns[3].after == (2,)
    assert asked(session.turns[3]) == [("user", "other")]


def test_a_rollback_drops_the_tools_of_the_users_turn_too(tmp_path: Path) -> None:
    rows = [
        HEAD,
        said(1, "user", "keep"),
        said(2, "assistant", "kept"),
        said(3, "user", "drop"),
        item(4, type="function_call", name="a", arguments="{}", call_id="1"),
        item(5, type="function_call_output", call_id="1", output="x"),
        said(6, "assistant", "dropped"),
        event(7, type="thread_rolled_back", num_turns=1),
        said(8, "user", "instead"),
        said(9, "assistant", "fine"),
    ]
    (session,) = workload(lines(tmp_path / "rollout-x.jsonl", rows)).sessions
    assert [turn.continues for turn in session.turns] == [None, 0, 1, 0]


def test_a_compaction_has_its_new_history(tmp_path: Path) -> None:
    history = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "kept"}]},
        {"type": "compaction", "encrypted_content": "x"},
    ]
    rows = [
        HEAD,
        said(1, "user", "kept"),
        said(2, "assistant", "long"),
        {"timestamp": at(3), "type": "compacted", "payload": {"message": "", "replacement_history": history}},
        said(4, "user", "go on"),
        said(5, "assistant", "on"),
    ]
    (session,) = workload(lines(tmp_path / "rollout-x.jsonl", rows)).sessions
    assert session.turns[1].continues is None
    assert asked(session.turns[1]) == [("system", "Be brief."), ("user", "kept"), ("user", "go on")]


def test_a_fork_keeps_its_own_name(tmp_path: Path) -> None:
    parent = {"timestamp": at(0), "type": "session_meta", "payload": {"id": "parent"}}
    rows = [HEAD, parent, said(1, "user", "Hi"), said(2, "assistant", "Ho")]
    assert workload(lines(tmp_path / "rollout-x.jsonl", rows)).sessions[0].session_id == "c-1"


def test_sub_agents_are_joined_to_the_session_that_sent_them(tmp_path: Path) -> None:
    main = [
        HEAD,
        said(1, "user", "Look into both."),
        item(2, type="function_call", name="spawn_agent", arguments="{}", call_id="1"),
        item(3, type="function_call_output", call_id="1", output="started"),
        item(4, type="function_call", name="wait", arguments="{}", call_id="2"),
        item(9, type="function_call_output", call_id="2", output="all done"),
        said(10, "assistant", "Done."),
    ]
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": "c-1", "depth": 1, "agent_nickname": "Ada"}}}
    child = [
        {"timestamp": at(2.5), "type": "session_meta", "payload": {"id": "c-2", "source": spawned}},
        said(2.5, "user", "Look."),
        item(5, type="function_call", name="shell", arguments="{}", call_id="9"),
        item(6, type="function_call_output", call_id="9", output="seen"),
        said(8, "assistant", "It drifts."),
    ]
    lines(tmp_path / "rollout-1.jsonl", main)
    lines(tmp_path / "rollout-2.jsonl", child)
    (session,) = workload(tmp_path).sessions
    assert session.session_id == "c-1"
    assert [turn.agent for turn in session.turns] == ["main", "sub-Ada", "main", "sub-Ada", "main"]
    assert [turn.continues for turn in session.turns] == [None, None, 0, 1, 2]
    assert [turn.after for turn in session.turns] == [(), (0,), (0,), (1,), (2, 3)]
    assert [turn.gap_s for turn in session.turns] == [0.0, 0.5, 1.0, 1.0, 1.0]
    assert workload(tmp_path / "rollout-2.jsonl").sessions[0].session_id == "c-2"  # without its parent


def test_agents_that_sent_each_other_are_read_too(tmp_path: Path) -> None:
    for name, parent in (("a", "b"), ("b", "a")):
        head = {"timestamp": at(0), "type": "session_meta", "payload": {"id": name, "parent_thread_id": parent}}
        lines(tmp_path / f"rollout-{name}.jsonl", [head, said(1, "user", "Hi"), said(2, "assistant", "Ho")])
    assert workload(tmp_path).num_turns == 2
