"""Usage adds up in every API, whole and streamed, over random conversations that branch and repeat themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
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


@pytest.mark.parametrize("api", [chat, messages, responses])
@settings(max_examples=12, deadline=None)
@given(
    turns=st.lists(st.tuples(st.sampled_from(["a", "b c", "é"]), st.booleans(), st.booleans()), min_size=1, max_size=5)
)
async def test_usage_adds_up(
    tmp_path_factory: pytest.TempPathFactory, api: Any, turns: list[tuple[str, bool, bool]]
) -> None:
    """LMCache #1260, vLLM #45079: the parts are the prompt; a later turn finds all of the one before it."""
    folder: Path = tmp_path_factory.mktemp("usage")
    web = WebBench(folder)
    web.start()
    history: History = []
    try:
        async with web.client() as http:
            for text, stream, starts_anew in turns:
                if starts_anew:
                    history = []
                known = web.prompt if history else []
                history.append(("user", text))
                said, prompt, usage = await api(http, history, stream=stream)
                assert set(prompt) == {len(web.prompt)} == {sum(usage["prompt_tokens_by_source"].values())}
                assert web.prompt[: len(known)] == known
                assert usage["prompt_tokens_by_source"]["computed"] <= len(web.prompt) - len(known)
                history.append(("assistant", said))
    finally:
        web.stop()
