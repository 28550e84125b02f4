"""``/v1/chat/completions`` and ``/v1/completions``: what is asked of the manager, and the answers' exact form."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from sessile.server.engine.messages import FinishReason, Priority
from sessile.server.web.answers import ChatChunk, ChatCompletion, TextCompletion
from sessile.sessions.errors import CapacityError, ContextOverflow, EngineError
from sessile.sessions.manager.requests import MessagesInput, TextInput, TokenIdsInput, ToolChoiceMode
from sessile.sessions.manager.turn_events import StopCause
from sessile.sessions.messages import Role

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def events_of(response: httpx.Response) -> list[str]:
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    pieces = response.text.split("\n\n")
    assert pieces.pop() == ""
    assert all(piece.startswith("data: ") for piece in pieces)
    return [piece.removeprefix("data: ") for piece in pieces]


def chunks_of(response: httpx.Response, kind: type[msgspec.Struct] = ChatChunk) -> list[Any]:
    *chunks, done = events_of(response)
    assert done == "[DONE]"
    return [msgspec.json.decode(chunk, type=kind) for chunk in chunks]


async def test_a_whole_answer(client, chat_body):
    response = await client.post(CHAT, json=chat_body)
    assert response.status_code == 200
    answer = msgspec.json.decode(response.content, type=ChatCompletion)
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    assert answer.model == response.headers["x-sessile-model"] == "tiny"
    assert answer.id == response.headers["x-request-id"]


async def test_usage_adds_up(client, chat_body):
    usage = (await client.post(CHAT, json=chat_body)).json()["usage"]
    assert usage["prompt_tokens"] == 40 == sum(usage["prompt_tokens_by_source"].values())
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 30 == 40 - usage["prompt_tokens_by_source"]["computed"]
    assert usage["timings"]["queue_s"] == 0.25


async def test_a_stream_is_role_deltas_finish_usage_done(client, chat_body):
    body = chat_body | {"stream": True, "stream_options": {"include_usage": True}}
    response = await client.post(CHAT, json=body)
    role, first, second, last, usage = chunks_of(response)
    assert role.choices[0].delta.role == "assistant"
    assert role.choices[0].delta.content == ""
    assert [first.choices[0].delta.content, second.choices[0].delta.content] == ["Hel", "lo"]
    assert last.choices[0].finish_reason == "stop"
    assert last.choices[0].delta.content is None
    assert usage.choices == []
    assert usage.usage.prompt_tokens == 40
    assert role.usage is first.usage is last.usage is None
    assert len({chunk.id for chunk in (role, first, second, last, usage)}) == 1


async def test_without_include_usage_no_chunk_speaks_of_it(client, chat_body):
    response = await client.post(CHAT, json=chat_body | {"stream": True})
    assert '"usage"' not in response.text
    assert chunks_of(response)[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("text", ['quote " and \\ and \n', "ünï😀", "\x00\x1f", "data: x\n\ndata: y"])
async def test_any_text_survives_the_stream(client, stage, chat_body, make_deltas, finished, text):
    stage.turns.script = [*make_deltas(text), finished]
    chunks = chunks_of(await client.post(CHAT, json=chat_body | {"stream": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


async def test_length_is_told(client, stage, chat_body, make_deltas, finished):
    end = msgspec.structs.replace(finished, finish_reason=FinishReason.LENGTH, stop_cause=StopCause.LENGTH)
    stage.turns.script = [*make_deltas("a"), end]
    assert (await client.post(CHAT, json=chat_body)).json()["choices"][0]["finish_reason"] == "length"


async def test_logprobs_stand_beside_the_text(client, stage, chat_body, make_deltas, finished):
    stage.turns.script = [*make_deltas("a", "", "b", logprobs=True), finished]
    body = chat_body | {"logprobs": True, "top_logprobs": 2}
    content = (await client.post(CHAT, json=body)).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["<1>", "<2>", "<3>"]
    assert content[0]["bytes"] == list(b"<1>")
    assert [top["token"] for top in content[0]["top_logprobs"]] == ["<1>", "<2>"]
    assert stage.turns.requests[-1].sampling.logprobs == 2

    chunks = chunks_of(await client.post(CHAT, json=body | {"stream": True}))
    streamed = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert [entry.token for entry in streamed] == ["<1>", "<2>", "<3>"]


async def test_the_body_becomes_the_turn(client, stage):
    body = {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ],
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 5,
        "stop": "END",
        "stop_token_ids": [4],
        "max_completion_tokens": 9,
        "min_tokens": 2,
        "ignore_eos": True,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "auto",
        "chat_template_kwargs": {"enable_thinking": False},
    }
    response = await client.post(CHAT, json=body, headers={"x-sessile-tenant": "acme"})
    assert response.status_code == 200, response.text
    (turn,) = stage.turns.requests
    assert turn.tenant == "acme"
    assert isinstance(turn.prompt, MessagesInput)
    assert [message.role for message in turn.prompt.messages] == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL]
    assert turn.prompt.messages[1].content == "a\nb"
    assert turn.prompt.messages[2].tool_calls[0].arguments == '{"x": 1}'
    assert turn.prompt.messages[3].tool_call_id == "c1"
    sampling = turn.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 0.5, 3, 0.1)
    assert (sampling.seed, sampling.max_tokens, sampling.min_tokens, sampling.ignore_eos) == (5, 9, 2, True)
    assert sampling.stop_token_ids == (4,)
    assert turn.stop == ("END",)
    assert turn.tools == tuple(body["tools"])
    assert turn.template_arguments == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Priority.INTERACTIVE),
        ({"service_tier": "flex"}, Priority.BACKGROUND),
        ({"service_tier": "priority"}, Priority.INTERACTIVE),
        ({"priority": "batch"}, Priority.BATCH),
        ({"priority": "interactive", "service_tier": "flex"}, Priority.INTERACTIVE),
    ],
)
async def test_the_class_of_a_turn(client, stage, chat_body, fields, expected):
    response = await client.post(CHAT, json=chat_body | fields)
    assert response.status_code == 200, response.text
    assert stage.turns.requests[0].priority is expected


async def test_tool_choice_changes_no_prompt(client, stage, chat_body):
    """An agent that wants its last answer in words would else pay for its whole conversation again."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    await client.post(CHAT, json=chat_body | {"tools": tools, "tool_choice": "none"})
    assert stage.turns.requests[0].tools == tuple(tools)
    assert stage.turns.requests[0].tool_choice.mode is ToolChoiceMode.NONE


async def test_fields_without_effect_are_reported(client, chat_body):
    strict = {"type": "function", "function": {"name": "f", "strict": True}}
    body = chat_body | {"user": "u", "metadata": {"a": "b"}, "store": None, "verbosity": "low", "tools": [strict]}
    response = await client.post(CHAT, json=body)
    assert response.status_code == 200
    assert set(response.headers["x-sessile-ignored"].split(", ")) == {
        "metadata",
        "store",
        "verbosity",
        "tools[].function.strict",
    }
    assert "x-sessile-ignored" not in (await client.post(CHAT, json=chat_body)).headers


async def test_marks_of_caches_and_running_usage_are_taken_as_other_servers_do(client, chat_body):
    """Agents mark what they want cached part by part; GuideLLM asks for usage in each chunk, and reads the last."""
    marked = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    fields = {
        "messages": [{"role": "user", "content": [marked, marked]}],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    response = await client.post(CHAT, json=chat_body | fields)
    assert response.status_code == 200, response.text
    assert set(response.headers["x-sessile-ignored"].split(", ")) == {
        "messages[].content[].cache_control",
        "stream_options.continuous_usage_stats",
    }


async def test_what_is_reported_fits_a_header_however_many_tools_there_are(client, chat_body):
    """Node takes 16 KiB of headers, aiohttp 8 KiB of one; agents with hundreds of tools mark each of them."""
    tools = [{"type": "function", "function": {"name": f"f{index}", "strict": True}} for index in range(1000)]
    response = await client.post(CHAT, json=chat_body | {"tools": tools})
    assert response.headers["x-sessile-ignored"] == "tools[].function.strict"


async def test_neutral_values_are_accepted(client, chat_body):
    body = chat_body | {
        "n": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "top_logprobs": None,
        "add_generation_prompt": True,
        "continue_final_message": False,
        "add_special_tokens": False,
        "skip_special_tokens": True,
        "length_penalty": 1.0,
        "bad_words": [],
        "cache_salt": None,
    }
    assert (await client.post(CHAT, json=body)).status_code == 200
    plain = {"prompt": "x", "add_special_tokens": True, "use_beam_search": False, "prompt_logprobs": None}
    assert (await client.post(TEXT, json=plain)).status_code == 200


async def test_a_whole_answer_says_how_long_it_is(client, chat_body):
    for fields in ({}, {"n": 2}):
        answer = await client.post(CHAT, json=chat_body | fields)
        assert int(answer.headers["content-length"]) == len(answer.content)
    assert "content-length" not in (await client.post(CHAT, json=chat_body | {"stream": True})).headers


async def test_minus_one_is_off_as_clients_of_other_servers_say_it(client, stage, chat_body):
    for path, body in ((CHAT, chat_body), (TEXT, {"prompt": "x"})):
        assert (await client.post(path, json=body | {"top_k": -1, "seed": -1})).status_code == 200
    assert [(turn.sampling.top_k, turn.sampling.seed) for turn in stage.turns.requests] == [(0, None)] * 2


@pytest.mark.parametrize("name", ["tiny", "m", "default", "", None])
async def test_names_of_the_served_model(client, chat_body, name):
    response = await client.post(CHAT, json=chat_body | {"model": name})
    assert response.status_code == 200
    assert response.json()["model"] == response.headers["x-sessile-model"] == "tiny"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("once", TextInput(text="once")),
        (["once"], TextInput(text="once")),
        ([1, 2, 3], TokenIdsInput(token_ids=(1, 2, 3))),
        ([[1, 2, 3]], TokenIdsInput(token_ids=(1, 2, 3))),
    ],
)
async def test_prompts_of_completions(client, stage, prompt, expected):
    response = await client.post(TEXT, json={"model": "m", "prompt": prompt})
    assert response.status_code == 200, response.text
    assert stage.turns.requests[0].prompt == expected
    assert stage.turns.requests[0].sampling.max_tokens == 16
    answer = msgspec.json.decode(response.content, type=TextCompletion)
    assert answer.choices[0].text == "Hello"
    assert answer.usage.prompt_tokens == 40


async def test_a_streamed_completion(client, stage, make_deltas, finished):
    stage.turns.script = [*make_deltas("a", "bc", logprobs=True), finished]
    body = {"prompt": "x", "stream": True, "logprobs": 1, "stream_options": {"include_usage": True}}
    *texts, last, usage = chunks_of(await client.post(TEXT, json=body), TextCompletion)
    assert [chunk.choices[0].text for chunk in texts] == ["a", "bc"]
    assert [chunk.choices[0].logprobs.text_offset for chunk in texts] == [[0], [3]]
    assert texts[0].choices[0].logprobs.top_logprobs == [{"<1>": -0.5, "<2>": -1.5}]
    assert last.choices[0].finish_reason == "stop"
    assert usage.usage.completion_tokens == 3


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ContextOverflow("too long", limit=512, field="messages"), 400, "invalid_request_error"),
        (CapacityError("queue full", retry_after_s=2.5), 429, "rate_limit_error"),
        (EngineError("restarting", retry_after_s=1), 503, "server_error"),
    ],
)
async def test_an_error_before_the_first_token_has_its_status(client, stage, chat_body, stream, error, status, kind):
    stage.turns.script = [error]
    response = await client.post(CHAT, json=chat_body | {"stream": stream})
    assert response.status_code == status
    assert response.json()["error"]["type"] == kind
    assert response.json()["error"]["param"] == error.field
    if error.retry_after_s:
        assert response.headers["retry-after"] == {2.5: "3", 1: "1"}[error.retry_after_s]


async def test_an_error_in_the_stream_is_an_event(client, stage, chat_body, make_deltas):
    stage.turns.script = [*make_deltas("a"), EngineError("the engine died", remedy="send it again")]
    response = await client.post(CHAT, json=chat_body | {"stream": True})
    assert response.status_code == 200
    *_, error, done = events_of(response)
    assert json.loads(error)["error"]["code"] == "engine_unavailable"
    assert "send it again" in json.loads(error)["error"]["message"]
    assert done == "[DONE]"


async def test_an_aborted_turn_is_an_error(client, stage, chat_body, make_deltas, finished):
    end = msgspec.structs.replace(finished, finish_reason=FinishReason.ABORTED)
    stage.turns.script = [*make_deltas("a"), end]
    assert (await client.post(CHAT, json=chat_body)).status_code == 503


async def test_every_turn_is_closed(client, stage, chat_body):
    for stream in (True, False):
        await client.post(CHAT, json=chat_body | {"stream": stream})
    assert stage.turns.closed == 2


async def test_a_bug_is_a_500_that_tells_nothing(client, stage, chat_body):
    stage.turns.script = [ZeroDivisionError("secret")]
    response = await client.post(CHAT, json=chat_body)
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.json()["error"]["type"] == "server_error"
