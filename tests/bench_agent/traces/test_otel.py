"""Where the versions of OTel's GenAI conventions, and those before them, have the messages of a request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_files import answered, asked, lines, workload

from sessile.bench_agent.errors import TraceError

TRACE = "0af7651916cd43dd8448eb211c80319c"


def value(plain: Any) -> dict[str, Any]:
    """A value as OTLP's JSON has it."""
    match plain:
        case bool():
            return {"boolValue": plain}
        case int():
            return {"intValue": str(plain)}
        case str():
            return {"stringValue": plain}
        case list():
            return {"arrayValue": {"values": [value(one) for one in plain]}}
        case _:
            return {"kvlistValue": {"values": [{"key": key, "value": value(one)} for key, one in plain.items()]}}


def span(key: str, start: float, end: float, attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "traceId": TRACE,
        "spanId": key,
        "name": "chat m",
        "startTimeUnixNano": str(round(start * 1e9)),
        "endTimeUnixNano": str(round(end * 1e9)),
        "attributes": [{"key": name, "value": value(one)} for name, one in attributes.items()],
        **more,
    }


def exported(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def message(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "content": said}


CALL = {"type": "tool_call", "id": "k", "name": "look", "arguments": {"at": "clock"}}
FIRST = [message("system", text("You mend.")), message("user", text("It is late."))]
ANSWER = message("assistant", text("I look."), CALL)
SECOND = [*FIRST, ANSWER, message("tool", {"type": "tool_call_response", "id": "k", "response": {"screw": "loose"}})]


def written(form: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes of the two requests, as text or as structured values."""

    def told(messages: Any) -> Any:
        return json.dumps(messages) if form == "text" else messages

    chat = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "c"}
    return (
        chat | {"gen_ai.input.messages": told(FIRST), "gen_ai.output.messages": told([ANSWER])},
        chat
        | {
            "gen_ai.input.messages": told(SECOND),
            "gen_ai.output.messages": told([message("assistant", text("Turn it."))]),
        },
    )


def check(path: Path) -> None:
    """Two turns, tied, with the call and its result."""
    (session,) = workload(path).sessions
    first, second = session.turns
    assert asked(first) == [("system", "You mend."), ("user", "It is late.")]
    assert answered(first) == ("I look.", ["look"])
    assert second.continues == 0 and second.gap_s == pytest.approx(0.5)
    assert asked(second) == [("tool", '{"screw":"loose"}')]
    assert second.prompt.messages[0].tool_call_id == "k"
    assert answered(second) == ("Turn it.", [])


@pytest.mark.parametrize("form", ["text", "structured"])
def test_lines_of_the_file_exporter(form: str, tmp_path: Path) -> None:
    first, second = written(form)
    rows = [exported(span("b", 2.5, 3, second)), exported(span("a", 1, 2, first), span("t", 2, 2.4, {}))]
    check(lines(tmp_path / "spans.jsonl", rows))


def test_objects_of_the_console_exporter(tmp_path: Path) -> None:
    """Each over many lines, one after the other; the ids are in a context."""
    rows = []
    for key, start, end, attributes in (("0xa", 1, 2, written("text")[0]), ("0xb", 2.5, 3, written("text")[1])):
        times = {"start_time": f"2026-03-01T10:00:0{start}Z", "end_time": f"2026-03-01T10:00:0{end}Z"}
        rows.append(
            {"name": "chat m", "context": {"trace_id": "0x1", "span_id": key}, **times, "attributes": attributes}
        )
    path = tmp_path / "spans.json"
    path.write_text("\n".join(json.dumps(row, indent=4) for row in rows) + "\n")
    check(path)


def test_an_event_with_all_messages(tmp_path: Path) -> None:
    first, second = written("structured")
    spans = []
    for key, start, end, attributes in (("a", 1, 2, first), ("b", 2.5, 3, second)):
        event = {
            "name": "gen_ai.client.inference.operation.details",
            "attributes": [{"key": name, "value": value(one)} for name, one in attributes.items()],
        }
        spans.append(span(key, start, end, {"gen_ai.conversation.id": "c"}, events=[event]))
    check(lines(tmp_path / "spans.json", [exported(*spans)]))


def test_an_event_for_each_message_on_the_span_or_as_log_records(tmp_path: Path) -> None:
    tool_call = {"id": "k", "type": "function", "function": {"name": "look", "arguments": '{"at": "clock"}'}}
    events: list[tuple[str, float, str, dict[str, Any]]] = [
        ("a", 1, "gen_ai.system.message", {"content": "You mend."}),
        ("a", 1, "gen_ai.user.message", {"content": "It is late."}),
        ("a", 2, "gen_ai.choice", {"index": 0, "message": {"content": "I look.", "tool_calls": [tool_call]}}),
        ("b", 2.5, "gen_ai.system.message", {"content": "You mend."}),
        ("b", 2.5, "gen_ai.user.message", {"content": "It is late."}),
        ("b", 2.5, "gen_ai.assistant.message", {"content": "I look.", "tool_calls": [tool_call]}),
        ("b", 2.5, "gen_ai.tool.message", {"content": '{"screw":"loose"}', "id": "k"}),
        ("b", 3, "gen_ai.choice", {"index": 0, "message": {"content": "Turn it."}}),
    ]
    records = [
        {"traceId": TRACE, "spanId": key, "timeUnixNano": str(int(at * 1e9)), "eventName": name, "body": value(body)}
        for key, at, name, body in events
    ]
    check(lines(tmp_path / "logs.jsonl", [{"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}]))
    spans = [
        span(key, start, end, {}, events=[
            {"name": name, "attributes": [{"key": "gen_ai.event.content", "value": value(json.dumps(body))}]}
            for of, _, name, body in events if of == key
        ])
        for key, start, end in (("a", 1, 2), ("b", 2.5, 3))
    ]  # fmt: skip
    check(lines(tmp_path / "spans.jsonl", [exported(*spans)]))


def test_numbered_attributes(tmp_path: Path) -> None:
    asked_first = {
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "You mend.",
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": "It is late.",
    }
    called = {"tool_calls.0.id": "k", "tool_calls.0.name": "look", "tool_calls.0.arguments": '{"at": "clock"}'}
    answer = {"role": "assistant", "content": "I look.", "finish_reason": "tool_calls", **called}
    first = asked_first | {f"gen_ai.completion.0.{name}": one for name, one in answer.items()}
    second = asked_first | {f"gen_ai.prompt.2.{name}": one for name, one in answer.items()}
    second |= {"gen_ai.prompt.3.role": "tool", "gen_ai.prompt.3.content": '{"screw":"loose"}'}
    second |= {"gen_ai.prompt.3.tool_call_id": "k"}
    second |= {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "Turn it."}
    check(lines(tmp_path / "spans.json", [exported(span("a", 1, 2, first), span("b", 2.5, 3, second))]))


def test_spans_without_recorded_messages_are_told(tmp_path: Path) -> None:
    first, _ = written("text")
    bare = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "c", "gen_ai.usage.input_tokens": 9}
    path = lines(tmp_path / "spans.json", [exported(span("a", 1, 2, first), span("b", 3, 4, bare))])
    assert [note for note in workload(path).notes if "1 chat spans without their messages" in note]
    path = lines(tmp_path / "bare.json", [exported(span("b", 3, 4, bare))])
    with pytest.raises(TraceError, match="chat spans without their messages"):
        workload(path)


def test_a_broken_span_alone_is_left_out(tmp_path: Path) -> None:
    first, second = written("text")
    broken = span("x", 1, 1, {"gen_ai.input.messages": "[{"})
    path = lines(tmp_path / "spans.json", [exported(broken, span("a", 1, 2, first), span("b", 2.5, 3, second))])
    with pytest.raises(TraceError, match=r"spans\.json:1: entry 1: an attribute that should hold JSON"):
        workload(path)
    assert workload(path, skip=True).num_turns == 2


def test_spans_that_were_exported_twice_count_once(tmp_path: Path) -> None:
    first, second = written("text")
    spans = [span("a", 1, 2, first), span("b", 2.5, 3, second)]
    check(lines(tmp_path / "spans.jsonl", [exported(*spans), exported(*spans)]))


def test_the_agent_is_that_of_the_span_around(tmp_path: Path) -> None:
    """The one that asks first is the main agent."""
    first, second = written("text")
    planner = span("p", 0, 9, {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "planner"})
    mender = span("m", 2, 4, {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "mender"}, parentSpanId="p")
    step = span("w", 2, 4, {}, parentSpanId="m")
    spans = [planner, mender, step, span("a", 1, 2, first, parentSpanId="p"), span("b", 3, 4, second, parentSpanId="w")]
    (session,) = workload(lines(tmp_path / "spans.json", [exported(*spans)])).sessions
    assert [turn.agent for turn in session.turns] == ["main", "mender"]
