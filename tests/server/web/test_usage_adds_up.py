"""Usage adds up in every API, whole and streamed, over random conversations that branch and repeat themselves."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from web_bench import WebBench

History = list[tuple[str, str]]


def _events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def chat(http: httpx.AsyncClient, history: History, *, stream: bool) -> tuple[str, list[int], dict[str, Any]]:
    messages = [{"role": role, "content": text} for role, text in history]
    body: dict[str, Any] = {"messages": messages, "stream": stream}
    if not stream:
        answer = (await http.post("/v1/chat/completions", json=body)).json()
        said, usage = answer["choices"][0]["message"]["content"], answer["usage"]
    else:
        body["stream_options"] = {"include_usage": True}
        events = _events(await http.post("/v1/chat/completions", json=body))
        pieces = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
        said, usage = "".join(pieces), events[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return said, [usage["prompt_tokens"], cached + usage["prompt_tokens_by_source"]["computed"]], usage


async def messages(http: httpx.AsyncClient, history: History, *, stream: bool) -> tuple[str, list[int], dict[str, Any]]:
    said_before = [{"role": role, "content": text} for role, text in history]
    body = {"messages": said_before, "stream": stream, "max_tokens": 100, "cache_control": {"type": "ephemeral"}}
    response = await http.post("/v1/messages", json=body)
    if stream:
        events = _events(response)
        said, usage = "".join(event.get("delta", {}).get("text", "") for event in events), events[-2]["usage"]
    else:
        said, usage = response.json()["content"][0]["text"], response.json()["usage"]
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return said, [sum(usage[part] for part in parts)], usage


async def responses(
    http: httpx.AsyncClient, history: History, *, stream: bool
) -> tuple[str, list[int], dict[str, Any]]:
    items = [{"role": role, "content": text} for role, text in history]
    response = await http.post("/v1/responses", json={"input": items, "stream": stream})
    answer = _events(response)[-1]["response"] if stream else response.json()
    usage, details = answer["usage"], answer["usage"]["input_tokens_details"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    prompt = [usage["input_tokens"], details["cached_tokens"] + details["cache_write_tokens"]]
    return answer["output"][0]["content"][0]["text"], prompt, usage


async def several(http: httpx.AsyncClient, history: History, *, stream: bool) -> tuple[str, list[int], dict[str, Any]]:
    """Two answers to one prompt, which counts once."""
    messages = [{"role": role, "content": text} for role, text in history]
    body: dict[str, Any] = {"messages": messages, "stream": stream, "n": 2}
    texts = ["", ""]
    if stream:
        body["stream_options"] = {"include_usage": True}
        events = _events(await http.post("/v1/chat/completions", json=body))
        for choice in (choice for event in events for choice in event["choices"]):
            texts[choice["index"]] += choice["delta"].get("content") or ""
        usage = events[-1]["usage"]
    else:
        answer = (await http.post("/v1/chat/completions", json=body)).json()
        texts, usage = [choice["message"]["content"] for choice in answer["choices"]], answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == sum(len(text) + 1 for text in texts)  # a token a letter, and the end
    return texts[0], [usage["prompt_tokens"]], usage


async def completions(
    http: httpx.AsyncClient, history: History, *, stream: bool
) -> tuple[str, list[int], dict[str, Any]]:
    body: dict[str, Any] = {"prompt": "".join(text for _, text in history), "max_tokens": 20, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
        events = _events(await http.post("/v1/completions", json=body))
        said = "".join(choice["text"] for event in events for choice in event["choices"])
        usage = events[-1]["usage"]
    else:
        answer = (await http.post("/v1/completions", json=body)).json()
        said, usage = answer["choices"][0]["text"], answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == len(said) + 1
    return said, [usage["prompt_tokens"]], usage


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebBench]:
    with WebBench(tmp_path) as web:
        yield web


@asynccontextmanager
async def fresh(web: WebBench) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a tenant that has never said anything: an example sees nothing of the ones before."""
    async with web.client() as http:
        http.headers["x-sessile-tenant"] = f"t{next(TENANTS)}"
        yield http


TENANTS = itertools.count()
FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXTS = st.sampled_from(["a", "b c", "é"])


@pytest.mark.parametrize("api", [chat, several, completions, messages, responses])
@FEW
@given(turns=st.lists(st.tuples(TEXTS, st.booleans(), st.booleans()), min_size=1, max_size=5))
async def test_usage_adds_up(web: WebBench, api: Any, turns: list[tuple[str, bool, bool]]) -> None:
    """LMCache #1260, vLLM #45079: the parts are the prompt; a later turn finds all of the one before it."""
    history: History = []
    async with fresh(web) as http:
        for text, stream, starts_anew in turns:
            if starts_anew:
                history = []
            known = web.prompt if history else []
            history.append(("user", text))
            said, prompt, usage = await api(http, history, stream=stream)
            assert set(prompt) == {len(web.prompt)} == {sum(usage["prompt_tokens_by_source"].values())}
            if api is not completions:  # which render no turn: the end of an answer is no text
                assert web.prompt[: len(known)] == known
                assert usage["prompt_tokens_by_source"]["computed"] <= len(web.prompt) - len(known)
            history.append(("assistant", said))


@FEW
@given(turns=st.lists(st.tuples(TEXTS, st.booleans()), min_size=1, max_size=5))
async def test_usage_adds_up_in_a_session(web: WebBench, turns: list[tuple[str, bool]]) -> None:
    """Over REST, whole and streamed, and what the list of turns says afterwards; gRPC sends the same values."""
    told, known = [], list[int]()
    async with fresh(web) as http:
        one = f"/v1/sessions/{(await http.post('/v1/sessions')).json()['session_id']}"
        for text, stream in turns:
            body = {"messages": [{"role": "user", "content": text}], "stream": stream}
            response = await http.post(f"{one}/generate", json=body)
            usage = (_events(response)[-1] if stream else response.json())["usage"]
            assert usage["prompt_tokens"] == len(web.prompt) == sum(usage["tokens_by_source"].values())
            assert web.prompt[: len(known)] == known
            known = web.prompt
            session = (await http.get(one)).json()
            assert session["num_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            told.append(usage)
        listed = (await http.get(f"{one}/turns")).json()["data"]
    assert [turn["usage"] for turn in listed] == told
    assert sum(turn["input_tokens"] + turn["output_tokens"] for turn in listed) == listed[-1]["num_tokens"]
