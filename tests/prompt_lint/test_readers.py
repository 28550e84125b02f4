"""Every format: recognised by its content, with the right requests, sessions and cached tokens."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import IO

import pytest

from sessile.prompt_lint.errors import LintConfigError, UnusableInput
from sessile.prompt_lint.readers.detect import FORMAT_NAMES, open_trace
from sessile.prompt_lint.request import ApiShape, Request

FORMATS = Path(__file__).parent / "formats"
CLAUDE = "11111111-2222-4333-8444-555555555555"
CODEX = "0199aaaa-1111-7222-8333-444455556666"
SPAN = "5b8aa5a2d2c872e8321cf37308d69df2"

# file -> format, and for each request (session, prompt tokens, cached, written); None where it is not recorded
SAMPLES: dict[str, tuple[str, list[tuple[str | None, int | None, int | None, int | None]]]] = {
    "01_anthropic_requests.jsonl": ("requests", [(None, None, None, None), ("s1", 2262, 2210, 40)]),
    "02_openai_chat_requests.jsonl": ("requests", [("s1", 2252, 2176, None)]),
    "03_openai_responses_requests.jsonl": ("requests", [("s1", 2260, 2176, 0)]),
    "04_openai_batch_input.jsonl": ("batch", [("q-7", None, None, None), ("q-8", None, None, None)]),
    "05_openai_batch_output.jsonl": ("batch", [("q-7", 40, 0, None)]),
    "06_anthropic_batch_input.jsonl": ("batch", [("q-7", None, None, None)]),
    "07_claude_code_transcript.jsonl": (
        "claude-code",
        [(CLAUDE, 24114, 0, 24110), (CLAUDE, 24236, 24110, 120), (CLAUDE, 22485, 0, 22480)],
    ),
    "08_codex_rollout.jsonl": ("codex", [(CODEX, 9240, 8960, None)]),
    "09_litellm_standard_logging.jsonl": ("litellm", [("s1", 2262, 2210, 40)]),
    "10_langfuse_observations.jsonl": ("langfuse", [("s1", 2262, 2210, 40)]),
    "11_langsmith_runs.jsonl": ("langsmith", [("s1", 2262, 2210, 40)]),
    "12_otlp_genai_spans.json": ("otlp", [("s1", 2262, 2210, 40)]),
    "13_otlp_genai_legacy_event.jsonl": ("genai-events", [(SPAN, None, None, None)]),
    "14_capture.har": ("har", [("s1", 2262, 2210, 40)]),
    "16_vllm_log_old.txt": ("vllm-log", [(None, None, None, None)]),
    "17_vllm_log_new.txt": ("vllm-log", [(None, None, None, None)]),
    "18_vllm_response_usage.json": ("responses", [(None, 2262, 2208, None)]),
    "19_sglang_request_log.jsonl": ("sglang-requests", [(None, 2262, 2250, None)]),
    "20_sglang_log.txt": ("sglang-log", [(None, 2262, 2250, None)]),
    "22_llama_server_log.txt": ("llama-server-log", [("slot 0", 2262, 2210, None)]),
    "23_llama_server_response.json": ("responses", [(None, 2262, 2210, None)]),
    "24_helicone_requests.jsonl": ("helicone", [("s1", 2262, 2176, None)]),
    "25_bedrock_invocation_log.jsonl": ("bedrock", [(None, 2262, 2210, 40)]),
    "26_gemini_requests.jsonl": ("requests", [("s1", 2262, 2048, None)]),
}


def counts(request: Request) -> tuple[str | None, int | None, int | None, int | None]:
    usage = request.usage
    if usage is None:
        return request.session, None, None, None
    return request.session, usage.prompt_tokens, usage.cached_tokens, usage.written_tokens


def read_all(name: str, stream: IO[bytes]) -> tuple[list[Request], list[UnusableInput]]:
    """The requests of an input, and what could not be read of it."""
    requests: list[Request] = []
    try:
        trace = open_trace(name, stream)
        requests.extend(trace.requests)
    except UnusableInput as error:
        return requests, [error]
    return requests, list(trace.errors.told())


def test_every_sample_is_listed() -> None:
    assert {p.name for p in FORMATS.iterdir()} == set(SAMPLES)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_sample(name: str) -> None:
    expected_format, expected = SAMPLES[name]
    with (FORMATS / name).open("rb") as stream:
        trace = open_trace(name, stream)
        requests = list(trace.requests)
    assert trace.format == expected_format
    assert [counts(r) for r in requests] == expected


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_truncated_sample_names_a_line(name: str) -> None:
    content = (FORMATS / name).read_bytes().rstrip()
    stream = io.BytesIO(content[: len(content) * 2 // 3])
    if name.endswith(".txt"):
        assert list(open_trace(name, stream).requests)  # the rest of a log is still a log
        return
    _, (error,) = read_all(name, stream)
    assert error.file == name
    assert error.line is not None


@pytest.mark.parametrize("name", [n for n in sorted(SAMPLES) if n.endswith(".jsonl")])
def test_a_foreign_line_is_an_error_with_its_line(name: str) -> None:
    content = (FORMATS / name).read_bytes().rstrip() + b'\n{"colour": "green"}\n'
    lines = content.count(b"\n")
    _, (error,) = read_all(name, io.BytesIO(content))
    assert error.line == lines


OK = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'


@pytest.mark.parametrize(
    "bad", [b"{]", b'{"colour": "green"}', b"[1]", b"7", b'"\xff"', b'{"messages": [], "input": 3}']
)
def test_what_follows_a_bad_line_is_read(bad: bytes) -> None:
    requests, errors = read_all("x", io.BytesIO(b"\n".join([OK, bad, OK, OK])))
    assert [request.line for request in requests if request.body["messages"]] == [1, 3, 4]
    assert [error.line for error in errors] == ([] if b"messages" in bad else [2])


def test_many_bad_lines_are_counted() -> None:
    requests, errors = read_all("x", io.BytesIO(b"\n".join([OK, *[b"{]"] * 1000, OK])))
    assert len(requests) == 2
    assert [error.line for error in errors[:-1]] == list(range(2, 22))
    assert errors[-1].reason == "980 more records cannot be read"


def test_json_as_python_and_javascript_write_it() -> None:
    line = rb'{"model": "m", "temperature": NaN, "messages": [{"role": "user", "content": "cut \ud83d"}]}'
    ((request,), errors) = read_all("x", io.BytesIO(line))
    assert not errors
    assert request.body["messages"][0]["content"] == "cut \ufffd"


BODY = {"model": "m", "messages": [{"role": "user", "content": "cut \ud83d"}]}
ATTRIBUTES = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(BODY["messages"])}


def captured(answer: str) -> dict[str, object]:
    entry = {"request": {"postData": {"text": json.dumps(BODY)}}, "response": {"content": {"text": answer}}}
    return {"log": {"entries": [entry]}}


@pytest.mark.parametrize(
    "record",
    [
        captured(""),
        {"request": json.dumps(BODY)},
        {
            "resourceSpans": [
                {
                    "scopeSpans": [
                        {
                            "spans": [
                                {"attributes": [{"key": k, "value": {"stringValue": v}} for k, v in ATTRIBUTES.items()]}
                            ]
                        }
                    ]
                }
            ]
        },
    ],
    ids=["har", "request", "otlp"],
)
def test_json_in_a_text_is_read_like_a_line(record: dict[str, object]) -> None:
    ((request,), errors) = read_all("x", io.BytesIO(json.dumps(record).encode()))
    assert not errors
    assert request.body["messages"][0]["content"] == "cut \ufffd"


@pytest.mark.parametrize("answer", ["[" * 100_000, "data: " + "[" * 100_000])
def test_an_answer_nested_without_end_has_no_usage(answer: str) -> None:
    for record in (captured(answer), {"request": BODY, "response": answer}):
        ((request,), errors) = read_all("x", io.BytesIO(json.dumps(record).encode()))
        assert not errors
        assert request.usage is None


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_wrong_format_name_is_an_error(name: str) -> None:
    wrong = "codex" if SAMPLES[name][0] != "codex" else "claude-code"
    with (FORMATS / name).open("rb") as stream, pytest.raises(UnusableInput):
        list(open_trace(name, stream, wrong).requests)


def test_unknown_format_name() -> None:
    with pytest.raises(LintConfigError, match="known: "):
        open_trace("x", io.BytesIO(b"{}"), "csv")
    assert "har" in FORMAT_NAMES


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x80\x04\x95pickle", "pickle"),
        (b"1234:7:version;2:20#}", "mitmdump"),
        (b"\x1f\x8b\x08\x00", "compressed"),
        (b"ab\x00cd", "binary"),
        (b"plain words\n", "no known format"),
    ],
)
def test_what_is_never_read(content: bytes, reason: str) -> None:
    with pytest.raises(UnusableInput, match=reason):
        open_trace("x", io.BytesIO(content))


def test_claude_code_counts_a_call_once() -> None:
    text = (FORMATS / "07_claude_code_transcript.jsonl").read_text().splitlines()
    doubled = "\n".join([*text[:2], text[1], *text[2:]])
    requests = list(open_trace("x", io.BytesIO(doubled.encode())).requests)
    assert [r.usage.prompt_tokens for r in requests if r.usage] == [24114, 24236, 22485]


def test_codex_repeated_counts_are_one_call() -> None:
    text = (FORMATS / "08_codex_rollout.jsonl").read_text().splitlines()
    requests = list(open_trace("x", io.BytesIO("\n".join([*text, text[-1]]).encode())).requests)
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("details", "prompt"),
    [
        (
            {
                "input": 12,
                "cache_read_input_tokens": 2210,
                "cache_creation_input_tokens": 40,
                "output": 6,
                "total": 2268,
            },
            2262,
        ),
        ({"input": 2262, "input_cached_tokens": 2210, "output": 6, "total": 2268}, 2262),
        ({"input": 52, "input_cache_read": 2210, "output": 6}, 2262),
        ({"input": 2262, "input_cache_read": 2210, "output": 6}, 2262),
    ],
)
def test_langfuse_conventions(details: dict[str, int], prompt: int) -> None:

    line = {
        "id": "o",
        "traceId": "t",
        "type": "GENERATION",
        "input": [{"role": "user", "content": "x"}],
        "usageDetails": details,
    }
    (request,) = open_trace("x", io.BytesIO(json.dumps(line).encode())).requests
    assert request.usage is not None
    assert request.usage.prompt_tokens == prompt


def test_rendered_prompts_and_token_ids() -> None:
    lines = b'{"timestamp": 1760428258635837, "input": "a b c", "output": "d", "session_id": "s"}\n'
    (request,) = open_trace("x", io.BytesIO(lines)).requests
    assert (request.shape, request.session, request.timestamp) == (ApiShape.TEXT, "s", 1760428258.635837)
    (request,) = open_trace("x", io.BytesIO(b'{"prompt_token_ids": [1, 2], "model": "m"}')).requests
    assert request.shape is ApiShape.TOKENS
