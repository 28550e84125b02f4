"""Several answers to one prompt."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from sessile.server.web.application import create_app
from sessile.sessions.errors import CapacityError
from sessile.sessions.manager.requests import CompletionRequest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def events_of(response: httpx.Response) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_each_choice_has_its_index_and_the_prompt_counts_once(client, stage, chat_body, path: str) -> None:
    body = (chat_body if path == CHAT else {"prompt": "x", "best_of": 3}) | {"n": 3, "seed": 2**63 - 2}
    answer = (await client.post(path, json=body)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    texts = {choice["message"]["content"] if path == CHAT else choice["text"] for choice in answer["choices"]}
    assert texts == {"Hello"}
    assert answer["usage"]["prompt_tokens"] == 40
    assert answer["usage"]["completion_tokens"] == 9
    assert sum(answer["usage"]["prompt_tokens_by_source"].values()) == 40
    assert [turn.sampling.seed for turn in stage.turns.requests] == [2**63 - 2, 2**63 - 1, 0]
    assert stage.turns.closed == 3


async def test_without_a_seed_each_draws_its_own(client, stage, chat_body) -> None:
    await client.post(CHAT, json=chat_body | {"n": 2})
    assert [turn.sampling.seed for turn in stage.turns.requests] == [None, None]


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_stream_has_all_choices_and_one_usage(client, chat_body, path: str) -> None:
    body = (chat_body if path == CHAT else {"prompt": "x"}) | {
        "n": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    *chunks, last = events_of(await client.post(path, json=body))
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 9
    for index in range(3):
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        text = "".join(choice["delta"].get("content") or "" if path == CHAT else choice["text"] for choice in own)
        assert text == "Hello"
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["stop"]
        assert path == TEXT or own[0]["delta"]["role"] == "assistant"
    assert all(chunk["usage"] is None for chunk in chunks)


async def test_the_choices_of_a_stream_come_as_they_are_made(stage, client, chat_body, make_deltas, finished) -> None:
    gate, seen = asyncio.Event(), []

    async def complete(request: CompletionRequest):
        number = len(seen)
        seen.append(request)
        if number == 0:
            await gate.wait()
        for delta in make_deltas(f"<{number}>"):
            yield delta
        yield finished
        gate.set()

    stage.turns.complete = complete
    chunks = events_of(await client.post(CHAT, json=chat_body | {"n": 2, "stream": True}))
    assert [choice["index"] for chunk in chunks for choice in chunk["choices"]] == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_one_ends_all(stage, client, chat_body, make_deltas, stream: bool) -> None:
    stage.turns.script = [CapacityError("full", retry_after_s=3.0)]
    response = await client.post(CHAT, json=chat_body | {"n": 2, "stream": stream})
    assert response.status_code == 429
    assert stage.turns.closed == 2

    stage.turns.script = [*make_deltas("a"), CapacityError("full later")]
    response = await client.post(CHAT, json=chat_body | {"n": 2, "stream": stream})
    if stream:
        assert events_of(response)[-1]["error"]["code"] == "capacity"
    else:
        assert response.status_code == 429
    assert stage.turns.closed == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_what_nobody_foresaw_ends_all_too(stage, chat_body, make_deltas, stream: bool) -> None:
    stage.turns.script = [*make_deltas("a"), RuntimeError("a fault of ours")]
    transport = httpx.ASGITransport(create_app(stage.parts()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://sessile") as client:
        response = await client.post(CHAT, json=chat_body | {"n": 2, "stream": stream})
    assert response.status_code == (200 if stream else 500)
    assert stage.turns.closed == 2


async def test_logprobs_of_choices(stage, client, make_deltas, finished) -> None:
    stage.turns.script = [*make_deltas("a", "b", logprobs=True), finished]
    answer = (await client.post(TEXT, json={"prompt": "x", "n": 2, "logprobs": 1})).json()
    assert [choice["logprobs"]["text_offset"] for choice in answer["choices"]] == [[0, 3], [0, 3]]
