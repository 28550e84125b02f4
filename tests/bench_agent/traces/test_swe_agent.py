"""Trajectories of SWE-agent, old and new, and of mini-swe-agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_files import answered, asked, workload


def written(path: Path, told: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=2))
    return path


def call(number: str, name: str = "bash") -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": name, "arguments": '{"command": "ls"}'}}


def row(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "agent": "main", **more}


TALK = [
    row("system", "You mend.", message_type="system_prompt"),
    row("user", "A demonstration: ls, then submit.", is_demo=True),
    row("user", [{"type": "text", "text": "The clock is late.", "cache_control": {"type": "ephemeral"}}]),
    row("assistant", "Look.", thought="Look.", action="ls", tool_calls=[call("t1")]),
    row("tool", "clock.py", tool_call_ids=["t1"]),
    row("assistant", "Submit.", thought="Submit.", action="submit", tool_calls=[call("t2", "submit")]),
    row("tool", "diff --git", tool_call_ids=["t2"]),
]


def test_calls_and_results_are_tied_and_what_follows_the_end_is_not_sent(tmp_path: Path) -> None:
    steps = [{"action": "ls", "execution_time": 0.5}, {"action": "submit", "execution_time": 2.0}]
    (session,) = workload(written(tmp_path / "clock.traj", {"trajectory": steps, "history": TALK, "info": {}})).sessions
    assert [answered(turn) for turn in session.turns] == [("Look.", ["bash"]), ("Submit.", ["submit"])]
    assert session.turns[1].prompt.messages[0].tool_call_id == "t1"
    assert session.turns[1].gap_s == 0.5


def test_demonstrations_turn_by_turn_are_prompt(tmp_path: Path) -> None:
    demo = [row("user", "Demo?", is_demo=True), row("assistant", "Demo!", is_demo=True)]
    told = {"history": [TALK[0], *demo, *TALK[2:]], "trajectory": [{"execution_time": 1.5}, {}]}
    (session,) = workload(written(tmp_path / "clock.traj", told)).sessions
    assert len(session.turns) == 2 and session.turns[1].gap_s == 1.5
    assert [role for role, _ in asked(session.turns[0])] == ["system", "user", "assistant", "user"]


def test_queries_say_what_was_sent(tmp_path: Path) -> None:
    """The second step's query has the first observation shortened: that is another prompt, not one that goes on."""
    first = TALK[:3]
    second = [*TALK[:4], row("tool", "clock.py", tool_call_ids=["t1"])]
    third = [
        *TALK[:4],
        row("tool", "(1 line omitted)", tool_call_ids=["t1"]),
        row("assistant", "Read."),
        row("user", "x"),
    ]
    steps = [{"query": query, "response": "r", "execution_time": 0.25} for query in (first, second, third)]
    (session,) = workload(written(tmp_path / "clock.traj", {"trajectory": steps, "history": TALK})).sessions
    assert [turn.continues for turn in session.turns] == [None, 0, 0]
    assert asked(session.turns[1]) == [("tool", "clock.py")]
    assert asked(session.turns[2]) == [("tool", "(1 line omitted)"), ("assistant", "Read."), ("user", "x")]
    assert [turn.gap_s for turn in session.turns] == [0.0, 0.25, 0.25]
    assert answered(session.turns[2]) == ("Submit.", ["submit"])


def test_attempts_are_sessions(tmp_path: Path) -> None:
    told = {"attempts": [{"history": TALK, "trajectory": []}] * 2, "history": TALK, "trajectory": []}
    found = workload(written(tmp_path / "clock.traj", told)).sessions
    assert [session.session_id for session in found] == ["clock#0", "clock#1"]


def test_mini_swe_agents_times_are_gaps(tmp_path: Path) -> None:
    rows = [
        {"role": "system", "content": "Run bash."},
        {"role": "user", "content": "Mend it."},
        {"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")], "extra": {"timestamp": 100.0}},
        {"role": "tool", "tool_call_id": "a", "content": "one", "extra": {"timestamp": 100.5}},
        {"role": "tool", "tool_call_id": "b", "content": "two", "extra": {"timestamp": 102.0}},
        {"role": "assistant", "content": "Done.", "extra": {"timestamp": 105.0}},
        {"role": "exit", "content": "patch", "extra": {"timestamp": 105.2}},
    ]
    told = {"info": {"mini_version": "2.2.7", "exit_status": "Submitted"}, "messages": rows}
    (session,) = workload(written(tmp_path / "clock.traj.json", told)).sessions
    assert len(session.turns) == 2 and session.turns[1].gap_s == pytest.approx(2.0)
    assert asked(session.turns[1]) == [("tool", "one"), ("tool", "two")]


def test_the_folder_of_a_run_has_other_files_too(tmp_path: Path) -> None:
    written(tmp_path / "run" / "preds.json", {"clock": {"model_patch": "diff"}})
    (tmp_path / "run" / "a_config.yaml").write_text("agent: {}\n")
    written(tmp_path / "run" / "clock" / "clock.traj", {"history": TALK, "trajectory": []})
    found = workload(tmp_path / "run")
    assert found.format == "swe-agent" and len(found.sessions) == 1
