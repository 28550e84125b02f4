"""A whole server tells of its misses in all its APIs, of its turns in spans, and of its numbers under others' names."""

from __future__ import annotations

import importlib.util
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from otlp_receiver import OtlpReceiver, otlp_receiver
from served_llama import make_served_llama
from server_process import ServerProcess

from sessile.server.client import Miss, Missed, SamplingParams, SessionClient, TurnFinished

pytestmark = pytest.mark.timeout(600)
HAS_OTEL = (
    all(importlib.util.find_spec(name) for name in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"))
    if importlib.util.find_spec("opentelemetry")
    else False
)
FLAGS = ("--dtype", "float32", "--threads", "1", "--kv-memory-bytes", "16MiB", "--metric-aliases")
RULES = "Keep to every rule of the handbook, whatever the traveller asks for. " * 8
TRIES = 8  # on a busy machine a turn may end before it is explained


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def process(receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = make_served_llama(tmp_path_factory.mktemp("model") / "tiny-llama")
    spans = ("--otlp-endpoint", receiver.endpoint) if HAS_OTEL else ()
    with ServerProcess(tmp_path_factory.mktemp("data"), "--model", str(model), *FLAGS, *spans) as server:
        yield server


@pytest.fixture
def server(process: ServerProcess) -> ServerProcess:
    """The module's, started again if a test has stopped it."""
    return process if process.is_running else process.start()


def system_texts() -> Iterator[str]:
    for second in itertools.count():
        yield f"You work for Ines.\nIt is 10:{second // 60:02d}:{second % 60:02d}.\n{RULES}"


def first_miss(send: Callable[[str], dict[str, Any] | None]) -> dict[str, Any]:
    """Send requests that differ in a clock alone until one is told why it missed."""
    for _, system in zip(range(1 + TRIES), system_texts(), strict=False):
        miss = send(system)
        if miss is not None:
            return miss
    raise AssertionError("no miss was told")


def post(server: ServerProcess, tenant: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Each test is a tenant of its own, whose requests are never compared with others'."""
    answer = httpx.post(server.url + path, json=body, headers={"x-sessile-tenant": tenant}, timeout=120)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert isinstance(found, dict)
    return found


def miss_of(server: ServerProcess, tenant: str, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    miss = post(server, tenant, path, body)["usage"]["miss"]
    assert miss is None or isinstance(miss, dict)
    return miss


def first_miss_of_a_chat(server: ServerProcess, tenant: str) -> dict[str, Any]:
    def send(system: str) -> dict[str, Any] | None:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "go on"}]
        return miss_of(server, tenant, "/v1/chat/completions", {"messages": messages, "max_tokens": 40})

    return first_miss(send)


def test_chat_says_why_it_missed(server: ServerProcess) -> None:
    miss = first_miss_of_a_chat(server, "chat")
    assert (miss["rule"], miss["path"]) == ("PL101", "messages[0].content")


def test_messages_say_it_in_usage_and_in_diagnostics(server: ServerProcess) -> None:
    def send(system: str) -> dict[str, Any] | None:
        talk = [{"role": "user", "content": "go on"}]
        answer = post(server, "messages", "/v1/messages", {"system": system, "messages": talk, "max_tokens": 40})
        miss = answer["usage"]["miss"]
        assert miss is None or isinstance(miss, dict)
        reason = (answer.get("diagnostics") or {}).get("cache_miss_reason")
        assert reason == (miss and {"type": "system_changed", "cache_missed_input_tokens": miss["lost_tokens"]})
        return miss

    miss = first_miss(send)
    assert (miss["rule"], miss["path"]) == ("PL101", "system")


def test_responses_say_it(server: ServerProcess) -> None:
    def send(system: str) -> dict[str, Any] | None:
        body = {"instructions": system, "input": "go on", "max_output_tokens": 40}
        return miss_of(server, "responses", "/v1/responses", body)

    miss = first_miss(send)
    assert (miss["rule"], miss["path"]) == ("PL101", "instructions")


def test_sessions_say_it_in_the_final_frame_and_to_watchers(server: ServerProcess) -> None:
    watched: list[Miss] = []
    finished: list[TurnFinished] = []
    begun, told = threading.Event(), threading.Event()

    def watch() -> None:
        with SessionClient(server.grpc_target, tenant="sessions") as client:
            for event in client.watch():
                begun.set()
                if isinstance(event.what, Missed):
                    watched.append(event.what.miss)
                    told.set()
                    return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    assert begun.wait(60)
    with SessionClient(server.grpc_target, tenant="sessions") as client:

        def send(system: str) -> dict[str, Any] | None:
            with client.open(system=system) as session:
                turn = session.generate(messages="go on", sampling=SamplingParams(max_tokens=40, ignore_eos=True))
                turn.wait()
                finished.append(turn.finished)
            return None if turn.finished.miss is None else {"rule": turn.finished.miss.rule}

        assert first_miss(send) == {"rule": "PL101"}
    assert told.wait(60)
    assert watched == [finished[-1].miss]


def test_the_windows_of_sessions_and_others_names(server: ServerProcess) -> None:
    first_miss_of_a_chat(server, "windows")
    rate = httpx.get(f"{server.url}/v1/cache/hit-rate", timeout=60).json()
    assert sum(rate["by_source"].values()) == rate["prompt_tokens"]
    assert sum(rate["missed"].values()) == rate["reusable_tokens"] - rate["cached_tokens"]
    assert rate["sessions"] and rate["cached_tokens"] > 0
    for of in rate["sessions"]:
        assert of["windows"]["1h"]["prompt_tokens"] == of["reuse"]["prompt_tokens"]
    metrics = httpx.get(f"{server.url}/metrics", timeout=60).text
    hits = next(line for line in metrics.splitlines() if line.startswith("vllm:prefix_cache_hits_total"))
    assert float(hits.split()[-1]) == rate["cached_tokens"]
    assert "sglang:cached_tokens_total" in metrics


@pytest.mark.skipif(not HAS_OTEL, reason="sessile[otel] is not installed")
def test_each_turn_came_to_the_collector_with_its_parts(server: ServerProcess, receiver: OtlpReceiver) -> None:
    """The server is stopped, so that it sends what it still has."""
    first_miss_of_a_chat(server, "spans")
    turns = httpx.get(f"{server.url}/v1/cache/hit-rate", timeout=60).json()["windows"]["start"]["turns"]
    server.stop()
    roots = [span for span in receiver.spans if not span.parent_span_id]
    assert len(roots) == turns >= 2
    for root in roots:
        parts = [span for span in receiver.spans if span.parent_span_id == root.span_id]
        assert [part.name for part in parts] == ["queue", "load", "prefill", "decode"]
        assert all(part.trace_id == root.trace_id for part in parts)
        assert root.start_time_unix_nano == parts[0].start_time_unix_nano
        ends = [part.end_time_unix_nano for part in parts]
        assert ends == sorted(ends)
        assert ends[-1] <= root.end_time_unix_nano
        said = {item.key: item.value for item in root.attributes}
        assert said["gen_ai.operation.name"].string_value == "chat"
        assert said["gen_ai.usage.input_tokens"].int_value > 100
    assert any("sessile.miss.rule" in {item.key for item in root.attributes} for root in roots)
    (name,) = {
        item.value.string_value
        for request in receiver.requests
        for resource in request.resource_spans
        for item in resource.resource.attributes
        if item.key == "service.name"
    }
    assert name == "sessile"
