"""Conversations and captured requests in the forms that OpenAI's, Anthropic's and others' clients write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_files import answered, asked, lines, workload

from sessile.bench_agent.errors import TraceError

TALK = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "One."},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "Three?"},
]


def test_captured_requests_without_answers_continue_each_other(tmp_path: Path) -> None:
    """What the assistant says next in the later request is the answer that the earlier one got."""
    rows = [
        {
            "custom_id": f"q{length}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": TALK[:length]},
        }
        for length in (1, 3, 5)
    ]
    (session,) = workload(lines(tmp_path / "batch.jsonl", rows)).sessions
    assert [turn.continues for turn in session.turns] == [None, 0, 1]
    assert answered(session.turns[0]) == ("One.", []) and session.turns[2].recorded is None
    assert [asked(turn) for turn in session.turns] == [[("user", f"{n}?")] for n in ("One", "Two", "Three")]


def test_bare_bodies_are_requests_and_lists_are_conversations(tmp_path: Path) -> None:
    bodies = [{"model": "m", "max_tokens": 9, "messages": TALK[:length]} for length in (1, 3)]
    (session,) = workload(lines(tmp_path / "bodies.jsonl", bodies)).sessions
    assert len(session.turns) == 2 and session.turns[1].continues == 0
    found = workload(lines(tmp_path / "lists.jsonl", [{"messages": TALK}, {"messages": TALK[:2]}])).sessions
    assert [len(session.turns) for session in found] == [3, 1]


def test_requests_out_of_order_are_put_in_order_of_time(tmp_path: Path) -> None:
    rows = [
        {"request": {"messages": TALK[:3]}, "session_id": "s", "ts": 20.0, "latency_ms": 1000},
        {"request": {"messages": TALK[:1]}, "session_id": "s", "ts": 10.0, "latency_ms": 2000},
    ]
    (session,) = workload(lines(tmp_path / "captured.jsonl", rows)).sessions
    assert [turn.continues for turn in session.turns] == [None, 0]
    assert session.turns[1].gap_s == pytest.approx(8.0)


def test_openais_responses(tmp_path: Path) -> None:
    call = {"type": "function_call", "id": "fc", "call_id": "k", "name": "look", "arguments": "{}"}
    first: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "input_text", "text": "Late."}]}]
    second = [
        *first,
        {"type": "reasoning", "summary": []},
        call,
        {"type": "function_call_output", "call_id": "k", "output": "x"},
    ]
    rows = [
        {
            "request": {"model": "m", "instructions": "You mend.", "input": first, "prompt_cache_key": "s"},
            "response": {"output": [{"type": "reasoning", "summary": []}, call], "usage": {"output_tokens": 7}},
        },
        {"request": {"model": "m", "instructions": "You mend.", "input": second, "prompt_cache_key": "s"}},
    ]
    (session,) = workload(lines(tmp_path / "captured.jsonl", rows)).sessions
    assert asked(session.turns[0]) == [("system", "You mend."), ("user", "Late.")]
    assert answered(session.turns[0]) == ("", ["look"]) and session.turns[0].output_tokens == 7
    assert session.turns[1].continues == 0 and asked(session.turns[1]) == [("tool", "x")]


def test_anthropics_blocks(tmp_path: Path) -> None:
    system = [{"type": "text", "text": "You mend.", "cache_control": {"type": "ephemeral"}}]
    calls = [{"type": "tool_use", "id": name, "name": name, "input": {"n": 1}} for name in ("a", "b")]
    results = [{"type": "tool_result", "tool_use_id": name, "content": f"re {name}"} for name in ("a", "b")]
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": calls}]
    body = {
        "model": "m",
        "max_tokens": 5,
        "system": system,
        "messages": [*messages, {"role": "user", "content": results}],
    }
    (session,) = workload(lines(tmp_path / "batch.jsonl", [{"custom_id": "q", "params": body}])).sessions
    assert asked(session.turns[0]) == [
        ("system", "You mend."), ("user", "Go."), ("assistant", ""), ("tool", "re a"), ("tool", "re b"),
    ]  # fmt: skip
    assert [call.name for call in session.turns[0].prompt.messages[2].tool_calls] == ["a", "b"]


def test_old_function_calls_and_custom_tools(tmp_path: Path) -> None:
    rows = [
        {"role": "developer", "content": "Rules."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "function_call": {"name": "old", "arguments": "{}"}},
        {"role": "function", "name": "old", "content": "x"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "k", "type": "custom", "custom": {"name": "new", "input": "free"}}],
        },
        {"role": "tool", "tool_call_id": "k", "content": [{"type": "text", "text": "y"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "End."}], "refusal": None},
    ]
    (session,) = workload(lines(tmp_path / "tune.jsonl", [{"messages": rows, "functions": [{"name": "old"}]}])).sessions
    assert [answered(turn) for turn in session.turns] == [("", ["old"]), ("", ["new"]), ("End.", [])]
    assert asked(session.turns[1]) == [("tool", "x")] and asked(session.turns[2]) == [("tool", "y")]
    assert session.tools[0]["function"] == {"name": "old"}


def test_aiperfs_lines_of_new_messages(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"session_id": "s", "message_mode": "delta", "messages": TALK[:1], "output_length": 4},
        {"session_id": "s", "message_mode": "delta", "messages": TALK[2:3], "output_length": 6, "delay": 1500},
    ]
    (session,) = workload(lines(tmp_path / "delta.jsonl", rows)).sessions
    assert [asked(turn) for turn in session.turns] == [[("user", "One?")], [("user", "Two?")]]
    assert session.turns[1].continues == 0 and session.turns[1].gap_s == 1.5
    assert [turn.output_tokens for turn in session.turns] == [4, 6]


def test_thousands_of_requests_of_one_session_are_linked_in_one_pass(tmp_path: Path) -> None:
    talk: list[dict[str, str]] = []
    rows = []
    for number in range(1500):
        talk.append({"role": "user", "content": f"{number}?"})
        rows.append({"request": {"messages": talk[-9:]}, "session_id": "s", "ts": float(number)})
        talk.append({"role": "assistant", "content": f"{number}."})
    (session,) = workload(lines(tmp_path / "captured.jsonl", rows)).sessions
    assert len(session.turns) == 1500
    assert [turn.continues for turn in session.turns[:5]] == [None, 0, 1, 2, 3]


def test_the_same_name_twice_is_two_sessions(tmp_path: Path) -> None:
    rows = [
        {"session_id": "s", "messages": TALK[:2]},
        {"session_id": "s", "messages": TALK[2:4]},
        {"messages": TALK[:1]},
    ]
    found = workload(lines(tmp_path / "lists.jsonl", rows)).sessions
    assert [session.session_id for session in found] == ["s", "s#2", "lists-3"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": "hello"}, "no list of messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "neither text nor a list of parts"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": "y"}]}, "tool_calls is not a list"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]}, "neither text nor a list"),
        ({"messages": ["x"]}, "not an object"),
        ({"messages": []}, "no list of messages"),
        ({"request": {"messages": TALK}, "latency_ms": -5}, "latency_ms has to be a time of 0 or more"),
        ({"model": "m", "max_tokens": -1, "messages": TALK}, "max_tokens has to be a number of tokens"),
    ],
)
def test_what_is_no_conversation(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "x.jsonl", [{"messages": TALK}, row])
    with pytest.raises(TraceError, match=rf"x\.jsonl:2: .*{said}"):
        workload(path)
    assert workload(path, skip=True).notes[0] == "lines left out: 1"


def test_an_array_says_which_entry_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{"messages": TALK}, {"messages": [{"content": "x"}]}], indent=2))
    with pytest.raises(TraceError, match=r"x\.json: entry 2: a message without a role"):
        workload(path)
