"""Claude Code's session files as its versions write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trace_files import answered, asked, lines, workload

from sessile.bench_agent.errors import TraceError


def at(second: float) -> str:
    return f"2026-09-20T10:{int(second) // 60:02}:{second % 60:06.3f}Z"


def line(uuid: str, parent: str | None, second: float, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": more.pop("call", uuid), "model": more.pop("model", "m"), "usage": more.pop("usage", {})}
    row = {"uuid": uuid, "parentUuid": parent, "sessionId": "s", "type": kind, "timestamp": at(second)}
    return row | {"isSidechain": False, "message": message} | more


def call(name: str, number: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": number, "name": name, "input": given}


def result(number: str, content: Any) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": number, "content": content}]


def test_lines_that_are_no_messages_link_the_chain_and_start_the_file(tmp_path: Path) -> None:
    """Summaries and snapshots stand first; hooks, attachments and meta lines between a question and its answer."""
    rows = [
        {"type": "summary", "summary": "Clock", "leafUuid": "zz"},
        {"type": "file-history-snapshot", "messageId": "u1", "snapshot": {}},
        {"type": "queue-operation", "operation": "enqueue", "sessionId": "s", "timestamp": at(0)},
        line("u1", None, 0, "user", "Why is the clock late?"),
        {"type": "attachment", "uuid": "t1", "parentUuid": "u1", "sessionId": "s", "timestamp": at(0.1)},
        line("a1", "t1", 2, "assistant", [{"type": "text", "text": "It drifts."}]),
        {"type": "system", "subtype": "turn_duration", "uuid": "y1", "parentUuid": "a1", "sessionId": "s"},
        line("m1", "y1", 3, "user", "<caveat>Commands follow.</caveat>", isMeta=True),
        line("u2", "m1", 5, "user", "Mend it."),
        {"type": "progress", "uuid": "p1", "parentUuid": "u2", "sessionId": "s", "timestamp": at(5.5)},
        line("a2", "p1", 6, "assistant", [{"type": "text", "text": "Done."}]),
    ]
    (session,) = workload(lines(tmp_path / "s.jsonl", rows)).sessions
    first, second = session.turns
    assert asked(first) == [("user", "Why is the clock late?")]
    assert second.continues == 0 and second.gap_s == pytest.approx(3.0)
    assert asked(second) == [("user", "<caveat>Commands follow.</caveat>"), ("user", "Mend it.")]


def test_results_of_parallel_calls_on_different_lines_are_all_sent(tmp_path: Path) -> None:
    """One API message is a line for each block; each result hangs on the line of its own call."""
    rows = [
        line("u1", None, 0, "user", "Read both."),
        line("a1", "u1", 1, "assistant", [call("Read", "t1", path="a")], call="m1", usage={"output_tokens": 3}),
        line("a2", "a1", 2, "assistant", [call("Read", "t2", path="b")], call="m1", usage={"output_tokens": 50}),
        line("r1", "a1", 3, "user", result("t1", "A")),
        line("r2", "a2", 4, "user", result("t2", [{"type": "text", "text": "B"}])),
        line("a3", "r2", 6, "assistant", [{"type": "text", "text": "Both read."}], call="m2"),
    ]
    (session,) = workload(lines(tmp_path / "s.jsonl", rows)).sessions
    first, second = session.turns
    assert answered(first) == ("", ["Read", "Read"]) and first.output_tokens == 50
    assert asked(second) == [("tool", "A"), ("tool", "B")] and second.continues == 0
    assert second.prompt.messages[1].tool_call_id == "t2"


def test_one_line_with_several_results_is_several_messages(tmp_path: Path) -> None:
    rows = [
        line("u1", None, 0, "user", "Go."),
        line("a1", "u1", 1, "assistant", [call("A", "t1"), call("B", "t2")]),
        line("r", "a1", 2, "user", [*result("t1", "one"), *result("t2", "two"), {"type": "text", "text": "Stop?"}]),
        line("a2", "r", 3, "assistant", [{"type": "text", "text": "No."}]),
    ]
    (session,) = workload(lines(tmp_path / "s.jsonl", rows)).sessions
    assert asked(session.turns[1]) == [("tool", "one"), ("tool", "two"), ("user", "Stop?")]


def test_failed_and_made_up_answers_are_no_calls(tmp_path: Path) -> None:
    rows = [
        line("u1", None, 0, "user", "Go."),
        line("e1", "u1", 1, "assistant", [{"type": "text", "text": "API Error"}], isApiErrorMessage=True),
        line("u2", "e1", 2, "user", "Again."),
        line("n1", "u2", 3, "assistant", [{"type": "text", "text": "No response requested."}], model="<synthetic>"),
        line("u3", "n1", 4, "user", "Now."),
        line("a1", "u3", 5, "assistant", [{"type": "text", "text": "Here."}]),
    ]
    (session,) = workload(lines(tmp_path / "s.jsonl", rows)).sessions
    assert [asked(turn) for turn in session.turns] == [[("user", "Go."), ("user", "Again."), ("user", "Now.")]]


def test_sub_agents_in_files_of_their_own_and_their_names(tmp_path: Path) -> None:
    main = [
        line("u1", None, 0, "user", "Look into both."),
        line("a1", "u1", 1, "assistant", [call("Task", "t1"), call("Task", "t2")]),
        line("r1", "a1", 9, "user", [*result("t1", "x"), *result("t2", "y")]),
        line("a2", "r1", 10, "assistant", [{"type": "text", "text": "Done."}]),
    ]
    for agent, shift in (("aa11", 2), ("bb22", 2.5)):
        side = {"isSidechain": True, "agentId": agent}
        rows = [
            line(f"{agent}u", None, shift, "user", "Look.", **side),
            line(f"{agent}a", f"{agent}u", shift + 1, "assistant", [call("Read", "k")], **side),
            line(f"{agent}v", f"{agent}a", shift + 2, "user", result("k", "text"), **side),
            line(f"{agent}b", f"{agent}v", shift + 3, "assistant", [{"type": "text", "text": "Seen."}], **side),
        ]
        lines(tmp_path / "s" / "subagents" / f"agent-{agent}.jsonl", rows)
    lines(tmp_path / "s.jsonl", main)
    (session,) = workload(tmp_path).sessions
    assert [turn.agent for turn in session.turns] == ["main", "sub-aa11", "sub-bb22", "sub-aa11", "sub-bb22", "main"]
    assert [turn.continues for turn in session.turns] == [None, None, None, 1, 2, 0]
    assert session.turns[1].after == session.turns[2].after == (0,)
    assert session.turns[5].after == (0, 3, 4)
    alone = workload(tmp_path / "s.jsonl")
    assert alone.num_turns == 2 and "2 files of sub-agents beside this one" in alone.notes[0]


def test_pictures_and_thinking_are_marked_and_told(tmp_path: Path) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    rows = [
        line("u1", None, 0, "user", [{"type": "text", "text": "What is this?"}, picture]),
        line("a1", "u1", 1, "assistant", [{"type": "thinking", "thinking": "A clock.", "signature": "x"}], call="m"),
        line("a2", "a1", 2, "assistant", [{"type": "text", "text": "A clock."}], call="m"),
    ]
    found = workload(lines(tmp_path / "s.jsonl", rows))
    assert asked(found.sessions[0].turns[0]) == [("user", "What is this?\n[image]")]
    assert answered(found.sessions[0].turns[0]) == ("A clock.", [])
    assert set(found.notes) == {"not sent: 1 image parts (their place is marked)", "not sent: 1 reasoning parts"}


@pytest.mark.parametrize("boundary_parent", [None, "a1"])
def test_after_a_compaction_the_conversation_starts_anew(boundary_parent: str | None, tmp_path: Path) -> None:
    rows = [
        line("u1", None, 0, "user", "Long talk."),
        line("a1", "u1", 1, "assistant", [{"type": "text", "text": "Yes."}]),
        {"type": "system", "subtype": "compact_boundary", "uuid": "c", "parentUuid": boundary_parent, "sessionId": "s"},
        line("u2", "c", 3, "user", "Summary: a long talk.", isCompactSummary=True),
        line("u3", "u2", 4, "user", "Go on."),
        line("a2", "u3", 5, "assistant", [{"type": "text", "text": "On."}]),
    ]
    (session,) = workload(lines(tmp_path / "s.jsonl", rows)).sessions
    assert session.turns[1].continues is None and session.turns[1].after == (0,)
    assert asked(session.turns[1]) == [("user", "Summary: a long talk."), ("user", "Go on.")]


def test_clocks_that_go_backwards_lose_no_context(tmp_path: Path) -> None:
    rows = [
        line("u1", None, 100, "user", "One."),
        line("a1", "u1", 101, "assistant", "1"),
        line("u2", "a1", 50, "user", "Two."),
        line("a2", "u2", 51, "assistant", "2"),
    ]
    (session,) = workload(lines(tmp_path / "s.jsonl", rows)).sessions
    assert [turn.continues for turn in session.turns] == [None, 0]
    assert [turn.gap_s for turn in session.turns] == [0.0, 0.0]


def test_parents_in_a_circle_are_a_bad_line(tmp_path: Path) -> None:
    rows = [
        line("u1", "a2", 0, "user", "One."),
        line("a1", "u1", 1, "assistant", "1"),
        line("u2", "a1", 2, "user", "Two."),
        line("a2", "u2", 3, "assistant", "2"),
    ]
    path = lines(tmp_path / "s.jsonl", rows)
    with pytest.raises(TraceError, match=r"s\.jsonl:1: its parents lead back to it"):
        workload(path)
    found = workload(path, skip=True)
    assert found.num_turns == 2 and "s.jsonl:1" in found.notes[1]


def test_sessions_arrive_as_far_apart_as_they_began(tmp_path: Path) -> None:
    for name, start in (("s", 0), ("t", 42)):
        rows = [line("u", None, start, "user", "Hi."), line("a", "u", start + 1, "assistant", "Ho.")]
        lines(tmp_path / f"{name}.jsonl", [row | {"sessionId": name} for row in rows])
    assert [session.arrival_s for session in workload(tmp_path).sessions] == [0.0, 42.0]


def test_an_answer_that_goes_on_and_one_to_nothing(tmp_path: Path) -> None:
    rows = [
        line("lost", "gone", 0, "assistant", [{"type": "text", "text": "To what?"}]),
        line("u1", None, 1, "user", "Go."),
        line("a1", "u1", 2, "assistant", [{"type": "text", "text": "First,"}], usage={"output_tokens": 5}),
        line("a2", "a1", 3, "assistant", [{"type": "text", "text": "then."}], usage={"output_tokens": 6}),
        line("u2", "a2", 4, "user", "And?"),
        line("a3", "u2", 5, "assistant", [{"type": "text", "text": "End."}]),
    ]
    found = workload(lines(tmp_path / "s.jsonl", rows))
    first, second = found.sessions[0].turns
    assert answered(first) == ("First,\nthen.", []) and first.output_tokens == 11
    assert second.continues == 0 and asked(second) == [("user", "And?")]
    assert found.notes == ("not sent: 1 answers to what the file does not hold",)
