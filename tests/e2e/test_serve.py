"""``sessile serve`` as a process, on a tiny random model: turns over HTTP, bad input, faults, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import jsonschema
import msgspec
import pytest
from served_llama import make_served_llama
from server_process import ROOT, ServerProcess
from waiting import wait_until

from sessile.server.client import Grammar, GrammarKind, SamplingParams, SessionClient
from sessile.sessions.errors import RequestError

pytestmark = pytest.mark.timeout(300)
FLAGS = ("--dtype", "float32", "--threads", "1", "--kv-memory-bytes", "16MiB", "--max-waiting", "50")
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_served_llama(tmp_path_factory.mktemp("model") / "tiny-llama")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("data"), "--model", str(model), *FLAGS) as server:
        yield server


def chat(server: ServerProcess, messages: list[dict[str, str]], **fields: object) -> httpx.Response:
    body = {"messages": messages, "max_tokens": 12, **GREEDY, **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)


def readiness(server: ServerProcess) -> int | None:
    """The status that it answers with, if it answers."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{server.url}/ready").status_code
    return None


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_conversation_reuses_all_of_its_tokens(server: ServerProcess) -> None:
    messages = [{"role": "system", "content": "You are brief. " * 10}, user("first")]
    before = httpx.get(f"{server.url}/v1/cache/hit-rate").json()
    known = 0
    for turn in range(3):
        answer = chat(server, messages).json()
        usage = answer["usage"]
        assert sum(usage["prompt_tokens_by_source"].values()) == usage["prompt_tokens"]
        if turn:
            assert usage["prompt_tokens_details"]["cached_tokens"] >= known - 1  # the last token was never an input
        known = usage["prompt_tokens"] + usage["completion_tokens"]
        messages += [{"role": "assistant", "content": answer["choices"][0]["message"]["content"]}, user(f"more {turn}")]
    after = httpx.get(f"{server.url}/v1/cache/hit-rate").json()
    assert after["prompt_tokens"] > before["prompt_tokens"]
    assert sum(after["by_source"].values()) == after["prompt_tokens"]


def test_the_server_tells_of_its_cache_and_its_misses(server: ServerProcess) -> None:
    rules = "Keep to every rule. " * 40
    for clock, turns in (("10:15:02", 1), ("10:16:40", 2)):
        talk = [user("one"), {"role": "assistant", "content": "two"}, user("three")][: 2 * turns - 1]
        answer = chat(server, [{"role": "system", "content": f"It is {clock}.\n{rules}"}, *talk]).json()
    miss = answer["usage"]["miss"]
    assert (miss["rule"], miss["path"], miss["char"]) == ("PL101", "messages[0].content", 10)
    assert miss["first_divergent_token"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    latest = httpx.get(f"{server.url}/v1/cache/misses").json()["misses"][0]
    assert (latest["rule"], latest["lost_tokens"]) == ("PL101", miss["lost_tokens"])
    tree = httpx.get(f"{server.url}/v1/cache/tree").json()
    assert sum(node["tokens"] for node in tree["nodes"]) > 500
    tiers = httpx.get(f"{server.url}/v1/cache/tiers").json()["tiers"]
    assert [tier["tier"] for tier in tiers][:1] == ["device"]
    assert tiers[0]["used_bytes"] > 0
    page = httpx.get(f"{server.url}/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    state = httpx.get(f"{server.url}/dashboard/state").json()
    name = state["sessions"][0]["session"]
    assert httpx.get(f"{server.url}/dashboard/session", params={"name": name}).json()["turns"]
    metrics = httpx.get(f"{server.url}/metrics").text
    assert 'sessile_cache_misses_total{rule="PL101"}' in metrics
    assert 'sessile_kv_event_tokens_total{event="stored",tier="device"}' in metrics


def test_a_stream_says_the_same(server: ServerProcess) -> None:
    whole = chat(server, [user("say something")]).json()["choices"][0]["message"]["content"]
    lines = chat(server, [user("say something")], stream=True).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == whole
    assert lines[-2] == "data: [DONE]"


def test_logprobs_are_those_of_the_tokens(server: ServerProcess) -> None:
    choice = chat(server, [user("x")], logprobs=True, top_logprobs=3, max_tokens=4).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == 4
    for entry in content:
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 3
        assert entry["token"] == entry["top_logprobs"][0]["token"]
    said = bytes(byte for entry in content for byte in entry["bytes"])
    assert said.decode("utf-8", "replace").startswith(choice["message"]["content"].rstrip("\ufffd"))


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "size": {"enum": ["small", "large"]}},
    "required": ["city", "size"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
def test_answers_match_a_schema(server: ServerProcess, stream: bool) -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    for seed in range(3):
        answer = chat(
            server,
            [user("a city")],
            response_format=response_format,
            temperature=1,
            seed=seed,
            max_tokens=900,
            ignore_eos=False,
            stream=stream,
        )
        if stream:
            events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
            choices = [choice for event in events for choice in event["choices"]]
            text = "".join(choice["delta"].get("content") or "" for choice in choices)
        else:
            text = answer.json()["choices"][0]["message"]["content"]
        jsonschema.validate(json.loads(text), CITY)


def test_a_schema_that_is_not_supported_is_told(server: ServerProcess) -> None:
    answer = chat(server, [user("x")], guided_json={"type": "object", "properties": {"a": {"not": {"type": "null"}}}})
    assert answer.status_code == 400
    assert "the keyword 'not' at #/properties/a/not" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "guided_json"


def test_several_answers_share_their_prompt(server: ServerProcess) -> None:
    prompt = [user("a prompt of some length, so that there are blocks to share " * 3)]
    answer = chat(server, prompt, n=3, seed=8, temperature=1).json()
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert len(set(texts)) == 3
    alone = [
        chat(server, prompt, seed=8 + index, temperature=1).json()["choices"][0]["message"]["content"]
        for index in range(3)
    ]
    assert texts == alone
    assert answer["usage"]["completion_tokens"] == 36


def test_sessions_take_grammars_and_penalties_over_grpc(server: ServerProcess) -> None:
    with SessionClient(server.grpc_target) as client, client.open() as session:
        grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(CITY))
        turn = session.generate(messages="a city", sampling=SamplingParams(seed=1, grammar=grammar, max_tokens=900))
        jsonschema.validate(json.loads("".join(delta.text for delta in turn)), CITY)
        plain = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logit_bias={65: 100.0})
        repeated = "".join(delta.text for delta in session.fork().generate(messages="x", sampling=plain))
        varied = "".join(
            delta.text
            for delta in session.fork().generate(
                messages="x", sampling=msgspec.structs.replace(plain, frequency_penalty=2.0, logit_bias={65: 3.0})
            )
        )
        assert len(set(varied)) > len(set(repeated)) == 1
        bad = SamplingParams(grammar=Grammar(GrammarKind.JSON_SCHEMA, '{"not": {}}'))
        with pytest.raises(RequestError, match="'not' at #/not") as caught:
            session.generate(messages="x", sampling=bad).wait()
        assert caught.value.field == "sampling.grammar"


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"messages": [user("long " * 3000)]}, 400, "messages"),
        ({"max_tokens": 100_000}, 400, "max_tokens"),
        ({"stop": [f"stop {index}" for index in range(2000)]}, 400, "stop"),
        ({"stop": [""]}, 400, "stop[0]"),
        ({"model": "another"}, 404, "model"),
        ({"stop_token_ids": [999_999]}, 400, "stop_token_ids[0]"),
        ({"metadata": {"x": "y" * 10_000_000}}, 413, None),
    ],
)
def test_bad_input_is_told_and_the_server_goes_on(server: ServerProcess, fields, status, param) -> None:
    response = chat(server, **({"messages": [user("x")]} | fields))
    assert response.status_code == status, response.text
    assert response.json()["error"]["param"] == param
    assert chat(server, [user("x")]).status_code == 200


def test_an_engine_that_is_killed_comes_back(server: ServerProcess) -> None:
    expected = chat(server, [user("again")]).json()["choices"]
    url = f"{server.url}/v1/chat/completions"
    body = {"messages": [user("go on")], "max_tokens": 1500, "stream": True, **GREEDY}
    with httpx.stream("POST", url, json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(server.engine_pid, signal.SIGKILL)
        events = [line for line in lines if line.startswith("data: ")]
    assert json.loads(events[-2][6:])["error"]["code"] == "engine_unavailable"
    wait_until(lambda: readiness(server) == 200)
    assert chat(server, [user("again")]).json()["choices"] == expected


def test_what_is_taken_is_told(server: ServerProcess, model: Path, tmp_path: Path) -> None:
    def serve(*flags: str) -> str:
        command = [sys.executable, "-m", "sessile.server.app", "serve", "--model", str(model), *FLAGS, *flags]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / ".import-root")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    own = ("--data-dir", str(tmp_path / "data"))
    assert "--http-port" in serve("--http-port", str(server.http_port), "--grpc-port", "0", *own)
    assert "--grpc-port" in serve("--http-port", "0", "--grpc-port", str(server.grpc_port), *own)
    assert "--data-dir" in serve("--http-port", "0", "--grpc-port", "0", "--data-dir", "/proc/nothing")
    assert "--data-dir" in serve("--http-port", "0", "--grpc-port", "0", "--data-dir", str(server.data_dir))
    assert chat(server, [user("x")]).status_code == 200


@pytest.mark.parametrize("signals", [1, 2])
def test_the_first_signal_drains_and_the_second_cancels(model: Path, tmp_path: Path, signals: int) -> None:
    with ServerProcess(tmp_path / "data", "--model", str(model), *FLAGS) as server:
        running = _LongTurn(server)
        running.first.wait(60)
        engine = server.engine_pid
        os.kill(engine, signal.SIGSTOP)  # so that the turn is not over before all of this is
        try:
            os.kill(server.pid, signal.SIGTERM)
            wait_until(lambda: readiness(server) == 503)
            refused = chat(server, [user("more")])
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            if signals == 2:
                os.kill(server.pid, signal.SIGTERM)
        finally:
            os.kill(engine, signal.SIGCONT)
        running.join(60)
        assert server.wait() == 0
        last = json.loads(running.events[-2])
        assert running.events[-1] == "[DONE]"
        assert ("error" in last) == (signals == 2), last
        assert "Traceback" not in server.tail()


class _LongTurn(threading.Thread):
    """A stream that is read in the background."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(daemon=True)
        self.first = threading.Event()
        self.events: list[str] = []
        self._server = server
        self.start()

    def run(self) -> None:
        body = {"messages": [user("go on")], "max_tokens": 1000, "stream": True, **GREEDY}
        with httpx.stream("POST", f"{self._server.url}/v1/chat/completions", json=body, timeout=60) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    self.events.append(line[6:])
                    self.first.set()
