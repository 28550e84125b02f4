"""Every format reads its sample, is recognised by it, and says the number of a broken line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessile.bench_agent.errors import BenchError, TraceError
from sessile.bench_agent.traces.formats import FORMATS, format_named, read_workload, recognised
from sessile.bench_agent.traces.source import BadLines
from sessile.bench_agent.workload.plan import BlocksPrompt, MessagesPrompt, SessionPlan, TextPrompt, Turn

SAMPLES = Path(__file__).parent / "samples"


def read(name: str) -> list[SessionPlan]:
    return list(read_workload(SAMPLES / name, BadLines()).sessions)


def new(turn: Turn) -> list[tuple[str, str]]:
    assert isinstance(turn.prompt, MessagesPrompt)
    return [(message.role, message.content) for message in turn.prompt.messages]


@pytest.mark.parametrize(
    ("name", "expected", "sessions", "turns"),
    [
        ("text.jsonl", "text", 2, 3),
        ("hash.jsonl", "hash", 3, 3),
        ("weka.json", "weka", 1, 5),
        ("swe.traj", "swe-agent", 1, 2),
        ("mini.traj.json", "swe-agent", 1, 2),
        ("claude.jsonl", "claude-code", 1, 5),
        ("codex.jsonl", "codex", 1, 3),
        ("otel.json", "otel", 1, 2),
        ("spans.json", "otel", 1, 3),
        ("aiperf.jsonl", "aiperf", 3, 4),
        ("inference_perf.json", "inference-perf", 1, 2),
        ("inference_perf.yaml", "inference-perf", 3, 12),
        ("conversations.jsonl", "conversations", 1, 3),
        ("list.json", "conversations", 1, 2),
        ("captured.jsonl", "conversations", 1, 2),
        ("native.jsonl", "native", 1, 2),
        ("claude_tree.jsonl", "claude-code", 1, 3),
        ("codex_bare.jsonl", "codex", 1, 2),
        ("codex_rollback.jsonl", "codex", 1, 4),
        ("otel_events.jsonl", "otel", 1, 2),
        ("otel_numbered.jsonl", "otel", 1, 1),
        ("bailian.jsonl", "hash", 2, 3),
        ("responses.jsonl", "conversations", 1, 2),
        ("swe_query.traj", "swe-agent", 1, 2),
    ],
)
def test_a_sample_is_recognised_and_read(name: str, expected: str, sessions: int, turns: int) -> None:
    assert recognised(SAMPLES / name).name == expected
    workload = read_workload(SAMPLES / name, BadLines())
    assert (len(workload.sessions), workload.num_turns) == (sessions, turns)
    assert workload.sha256() == read_workload(SAMPLES / name, BadLines()).sha256()


def test_every_format_has_a_sample() -> None:
    seen = {recognised(path).name for path in SAMPLES.iterdir()}
    assert seen == {known.name for known in FORMATS}


def test_text_sessions_are_put_in_order_of_time() -> None:
    first, second = read("text.jsonl")
    assert first.session_id == "a"
    assert [turn.gap_s for turn in first.turns] == [0.0, 4.0]
    assert isinstance(first.turns[1].prompt, TextPrompt) and first.turns[1].prompt.text.endswith("40 lines")
    assert second.arrival_s == 2.0


def test_hash_ids_keep_their_blocks() -> None:
    sessions = read("hash.jsonl")
    prompt = sessions[2].turns[0].prompt
    assert isinstance(prompt, BlocksPrompt)
    assert (prompt.hash_ids, prompt.block_tokens, prompt.num_tokens) == ((0, 1, 4), 512, 1530)
    assert sessions[2].arrival_s == 0.9


def test_weka_sub_agents_run_beside_each_other_and_are_waited_for() -> None:
    turns = read("weka.json")[0].turns
    assert [turn.agent for turn in turns] == ["main", "sub-x", "sub-x", "sub-y", "main"]
    assert [turn.after for turn in turns] == [(), (0,), (1,), (0,), (0, 2, 3)]
    assert turns[4].gap_s == 0.25
    assert turns[2].gap_s == pytest.approx(0.5)  # 2.0 - (0.5 + 1.0)


def test_swe_agent_gaps_are_the_times_of_the_actions() -> None:
    turns = read("swe.traj")[0].turns
    assert new(turns[0]) == [("system", "You solve issues with a shell."), ("user", "The clock is late.")]
    assert [turn.gap_s for turn in turns] == [0.0, 0.3]  # what was seen after the last answer was not sent
    assert turns[1].recorded is not None and turns[1].recorded.content == "Read it.\ncat clock.py"


def test_mini_swe_agent_keeps_tool_calls() -> None:
    turns = read("mini.traj.json")[0].turns
    assert turns[0].recorded is not None and turns[0].recorded.tool_calls[0].name == "bash"
    assert new(turns[1]) == [("tool", "clock.py")]


def test_claude_code_has_forks_side_chains_and_compactions() -> None:
    session = read("claude.jsonl")[0]
    turns = session.turns
    assert [turn.continues for turn in turns] == [None, None, 0, 0, None]
    assert turns[0].output_tokens == 42  # two lines of one call
    assert turns[0].recorded is not None and turns[0].recorded.tool_calls[0].name == "Task"
    assert turns[1].agent.startswith("sub-") and turns[1].after == (0,)
    assert turns[2].after == (0, 1)  # waits for the side chain
    assert turns[2].gap_s == pytest.approx(0.5)
    assert new(turns[4]) == [("user", "Summary: line 13 drifts.")]
    assert session.unrecorded_tokens > 1900


def test_codex_answers_are_all_that_came_since_the_last_input() -> None:
    session = read("codex.jsonl")[0]
    turns = session.turns
    assert session.session_id == "codex-1"
    assert new(turns[0]) == [("system", "Be brief."), ("user", "Why is the clock late?")]
    assert [turn.output_tokens for turn in turns[:2]] == [25, 11]
    assert turns[1].gap_s == pytest.approx(1.5)
    assert turns[2].continues is None
    assert new(turns[2]) == [("system", "Be brief."), ("user", "So far: line 12."), ("user", "Fix it.")]
    assert session.unrecorded_tokens > 4900


def test_otel_requests_are_linked_by_their_messages() -> None:
    turns = read("otel.json")[0].turns
    assert turns[1].continues == 0 and new(turns[1]) == [("user", "Ten minutes.")]
    assert turns[1].gap_s == pytest.approx(1.5)
    assert turns[0].output_tokens == 4


def test_otel_overlapping_requests_overlap_again() -> None:
    turns = read("spans.json")[0].turns
    assert [turn.continues for turn in turns] == [None, 0, 0]
    assert [turn.after for turn in turns] == [(), (0,), (0,)]


def test_aiperf_lifts_the_system_prompt_and_keeps_delays() -> None:
    sessions = read("aiperf.jsonl")
    assert new(sessions[0].turns[0]) == [("system", "Be terse."), ("user", "What is a clock?")]
    assert (sessions[0].turns[1].gap_s, sessions[0].turns[1].output_tokens) == (1.5, 8)
    assert new(sessions[1].turns[0]) == [("user", "What is a spring?")]


def test_inference_perf_settings_make_sessions() -> None:
    sessions = read("inference_perf.yaml")
    assert [len(session.turns) for session in sessions] == [4, 4, 4]
    assert sessions[0].turns[0].prompt.messages[0] == sessions[1].turns[0].prompt.messages[0]
    assert all(turn.gap_s == 2.0 for turn in sessions[0].turns[1:])


def test_conversations_keep_tools_and_a_last_question() -> None:
    session = read("conversations.jsonl")[0]
    assert session.session_id == "k1" and len(session.tools) == 1
    assert new(session.turns[2]) == [("user", "Thanks.")]


def test_captured_requests_are_linked() -> None:
    turns = read("captured.jsonl")[0].turns
    assert turns[1].continues == 0 and turns[1].gap_s == pytest.approx(1.5)


_BROKEN = {
    "text": '{"timestamp": "soon", "input": "x", "output": "y"}',
    "hash": '{"timestamp": 0, "input_length": 9999, "output_length": 1, "hash_ids": [1]}',
    "weka": '{"id": "x", "requests": [{"t": 0.0, "type": "n", "in": 5}]}',
    "claude-code": '{"sessionId": "s", "type": "user", "message": {"role": "user", "content": "no uuid"}}',
    "codex": '{"timestamp": "2026-03-01T10:00:00Z", "type": "response_item", "payload": 3}',
    "otel": '{"traceId": "t", "spanId": "1", "attributes": {"gen_ai.input.messages": "[{"}}',
    "inference-perf": '{"id": "1", "conversations": [{"from": "nobody", "value": "x"}]}',
    "conversations": '{"messages": [{"content": "no role"}]}',
    "aiperf": '{"session_id": "s", "turns": [{"delay": 1}]}',
    "native": '{"session_id": "x", "turns": [{"prompt": {"type": "text", "text": "a"}, "after": [3]}]}',
}
_GOOD = {
    "weka": "weka.json",
    "otel": "spans.json",
    "inference-perf": "inference_perf.json",
}


@pytest.mark.parametrize("name", sorted(_BROKEN))
@pytest.mark.parametrize("broken", ["of the format", "not json"])
def test_a_broken_line_is_named_and_skipped_on_request(name: str, broken: str, tmp_path: Path) -> None:
    sample = SAMPLES / _GOOD.get(name, f"{name.replace('-code', '')}.jsonl")
    good = sample.read_text().replace("\n", " ").strip() if sample.suffix == ".json" else sample.read_text().strip()
    good = good[1:-1] if good.startswith("[") else good
    lines = [*good.splitlines(), _BROKEN[name] if broken == "of the format" else '{"timestamp": 1, "inp']
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceError, match=rf"trace\.jsonl:{len(lines)}: ") as caught:
        read_workload(path, BadLines(), name)
    assert caught.value.line == len(lines)
    workload = read_workload(path, BadLines(skip=True), name)
    assert workload.sessions
    assert [note for note in workload.notes if f"trace.jsonl:{len(lines)}" in note]


def test_a_broken_trajectory_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.traj").write_text((SAMPLES / "swe.traj").read_text())
    (tmp_path / "b.traj").write_text("{")
    with pytest.raises(TraceError, match=r"b\.traj"):
        read_workload(tmp_path, BadLines(), "swe-agent")
    assert len(read_workload(tmp_path, BadLines(skip=True), "swe-agent").sessions) == 1


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read_workload(tmp_path / "missing.jsonl", BadLines())
    unknown = tmp_path / "x.jsonl"
    unknown.write_text('{"colour": "red"}\n')
    with pytest.raises(TraceError, match="no format that is known"):
        read_workload(unknown, BadLines())
    with pytest.raises(BenchError, match="there are: native"):
        format_named("nothing")
