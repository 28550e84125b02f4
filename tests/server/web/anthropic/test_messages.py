"""``/v1/messages``: the exact events, what is asked of the manager, usage that adds up, errors in Anthropic's shape."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manager_bench import GREEDY, collected, user
from web_bench import WebBench

from sessile.server.engine.grammar import GrammarKind
from sessile.server.text.answer_format import ReasoningFormat, TextConfig, ToolFormat
from sessile.sessions.manager import GenerateRequest, MessagesInput

PATH = "/v1/messages"
WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":  "Paris"}}\n</tool_call>'


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    said = list(messages) or [{"role": "user", "content": "hi"}]
    return {"model": "m", "max_tokens": 200, "messages": said, **fields}


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for piece in response.text.split("\n\n")[:-1]:
        name, data = piece.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def total(usage: dict[str, Any]) -> int:
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


async def test_a_whole_answer(web: WebBench, http: httpx.AsyncClient) -> None:
    web.says("Hello.")
    response = await http.post(PATH, json=body(system="Be brief."))
    answer = response.json()
    assert answer["content"] == [{"type": "text", "text": "Hello."}]
    assert (answer["role"], answer["type"], answer["stop_reason"], answer["model"]) == (
        "assistant",
        "message",
        "end_turn",
        "scripted",
    )
    assert answer["id"].startswith("msg_")
    assert response.headers["request-id"].startswith("req_")
    assert response.headers["x-sessile-session"].startswith("ses_")
    assert total(answer["usage"]) == len(web.prompt)
    assert web.shown.startswith("<|im_start|>system\nBe brief.<|im_end|>")


async def test_the_events_of_a_stream(web: WebBench, http: httpx.AsyncClient) -> None:
    web.says("Hm.\n" + CALL)
    events = events_of(await http.post(PATH, json=body(stream=True, tools=[WEATHER])))
    kinds = [event["type"] for event in events]
    assert kinds[:4] == ["message_start", "content_block_start", "ping", "content_block_delta"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [(event["index"], event["content_block"]["type"]) for event in starts] == [(0, "text"), (1, "tool_use")]
    assert starts[1]["content_block"]["input"] == {}
    assert starts[1]["content_block"]["id"].startswith("call_")
    texts = [event["delta"]["text"] for event in events if event.get("delta", {}).get("type") == "text_delta"]
    pieces = [e["delta"]["partial_json"] for e in events if e.get("delta", {}).get("type") == "input_json_delta"]
    assert ("".join(texts), "".join(pieces)) == ("Hm.", '{"city":  "Paris"}')
    started, ended = events[0]["message"], events[-2]
    assert (started["content"], started["stop_reason"], started["usage"]["output_tokens"]) == ([], None, 0)
    assert ended["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert total(started["usage"]) == total(ended["usage"]) == len(web.prompt)
    assert ended["usage"]["output_tokens"] == len("Hm.\n" + CALL) + 1


async def test_thinking_is_shown_to_those_who_ask(web: WebBench, http: httpx.AsyncClient) -> None:
    web.text = TextConfig(tool_parser=ToolFormat.HERMES, reasoning_parser=ReasoningFormat.THINK)
    web.restart()
    async with web.client() as client:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        web.says("<think>why</think>so")
        whole = await client.post(PATH, json=body(thinking=thinking))
        assert [block["type"] for block in whole.json()["content"]] == ["thinking", "text"]
        assert whole.json()["content"][0]["thinking"] == "why"
        assert whole.headers["x-sessile-ignored"] == "thinking.budget_tokens"
        web.says("<think>why</think>so")
        events = events_of(await client.post(PATH, json=body(thinking=thinking, stream=True)))
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        assert [delta["type"] for delta in deltas] == [*["thinking_delta"] * 3, "signature_delta", *["text_delta"] * 2]
        assert deltas[3]["signature"] == whole.json()["content"][0]["signature"] != ""
        web.says("<think>why</think>so")
        silent = (await client.post(PATH, json=body())).json()
        assert [block["type"] for block in silent["content"]] == ["text"]
        assert silent["usage"]["output_tokens_details"]["thinking_tokens"] > 0
        # what was shown may come back, or not: the session has it in tokens
        for shown in (whole.json()["content"], [{"type": "text", "text": "so"}]):
            again = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": shown}]
            await client.post(PATH, json=body(*again, {"role": "user", "content": "and?"}, thinking=thinking))
            assert "<think>why</think>so<|im_end|>" in web.shown


async def test_a_tool_loop_with_anthropics_client(web: WebBench, sdk: anthropic.AsyncAnthropic) -> None:
    """MTPLX #121: the client parses and rewrites the call's input; the recorded tokens are used."""
    said = web.says("Let me look.\n" + CALL)
    messages: list[Any] = [{"role": "user", "content": "Paris?"}]
    async with sdk.messages.stream(model="m", max_tokens=200, messages=messages, tools=[WEATHER]) as stream:
        events = [event.type async for event in stream]
        first = await stream.get_final_message()
    assert events[0] == "message_start"
    assert first.stop_reason == "tool_use"
    prompt = web.prompt
    call = first.content[1]
    assert isinstance(call, anthropic.types.ToolUseBlock)
    assert call.input == {"city": "Paris"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    web.says("It is sunny.")
    second = await sdk.messages.create(model="m", max_tokens=200, messages=messages, tools=[WEATHER])
    assert web.prompt[: len(prompt) + len(said)] == [*prompt, *said]
    assert second.content[0].text == "It is sunny."
    usage = second.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == len(web.prompt)
    assert (usage.cache_read_input_tokens or 0) >= 0.95 * (len(prompt) + len(said))


async def test_a_conversation_by_messages_is_continued_by_grpc(web: WebBench, http: httpx.AsyncClient) -> None:
    said = web.says("Hello.")
    response = await http.post(PATH, json=body(system="s"))
    prompt = web.prompt
    request = GenerateRequest(
        session_id=response.headers["x-sessile-session"], input=MessagesInput((user("more"),)), sampling=GREEDY
    )
    _, finished = await collected(web.bench.manager.generate(request))
    assert finished.turn == 2
    assert web.prompt[: len(prompt) + len(said)] == [*prompt, *said]


async def test_a_conversation_by_messages_is_continued_by_chat_completions(
    web: WebBench, http: httpx.AsyncClient
) -> None:
    web.says("Hello.")
    one = await http.post(PATH, json=body(system="s"))
    chat = [("system", "s"), ("user", "hi"), ("assistant", "Hello."), ("user", "more")]
    messages = [{"role": role, "content": text} for role, text in chat]
    two = await http.post("/v1/chat/completions", json={"messages": messages})
    assert two.headers["x-sessile-session"] == one.headers["x-sessile-session"]


@pytest.mark.parametrize("ttl", ["5m", "1h"])
async def test_cache_control_is_a_retention(web: WebBench, http: httpx.AsyncClient, ttl: str) -> None:
    control = {"type": "ephemeral", "ttl": ttl}
    response = await http.post(PATH, json=body(system=[{"type": "text", "text": "s", "cache_control": control}]))
    usage = response.json()["usage"]
    assert usage["cache_creation_input_tokens"] == len(web.prompt) == total(usage)
    assert usage["cache_creation"] == {
        "ephemeral_5m_input_tokens": len(web.prompt) if ttl == "5m" else 0,
        "ephemeral_1h_input_tokens": len(web.prompt) if ttl == "1h" else 0,
    }
    session = await web.bench.store.session(response.headers["x-sessile-session"])
    assert session is not None
    assert session.keeping.retained is not None
    left = session.keeping.retained.ttl_s(session.updated_at)
    assert left is not None
    assert abs(left - {"5m": 300, "1h": 3600}[ttl]) < 5


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.tuples(st.text("ab ", max_size=6), st.booleans(), st.booleans()), min_size=1, max_size=4))
async def test_vllm_45079_usage_adds_up(web: WebBench, turns: list[tuple[str, bool, bool]]) -> None:
    """Input, cache reads and cache creation are the prompt, whole and streamed, first turn or later."""
    messages: list[dict[str, Any]] = []
    async with web.client() as client:
        for text, kept, stream in turns:
            block: dict[str, Any] = {"type": "text", "text": text}
            messages.append(
                {"role": "user", "content": [block | ({"cache_control": {"type": "ephemeral"}} if kept else {})]}
            )
            response = await client.post(PATH, json=body(*messages, stream=stream))
            if stream:
                events = events_of(response)
                usage = events[-2]["usage"]
                said = "".join(event.get("delta", {}).get("text", "") for event in events)
            else:
                usage, said = response.json()["usage"], response.json()["content"][0]["text"]
            assert total(usage) == len(web.prompt) == sum(usage["prompt_tokens_by_source"].values())
            assert usage["cache_creation_input_tokens"] == sum(usage["cache_creation"].values())
            messages.append({"role": "assistant", "content": said})


async def test_what_ends_an_answer(web: WebBench, http: httpx.AsyncClient) -> None:
    web.says("one two three")
    stopped = (await http.post(PATH, json=body(stop_sequences=["x", " t", "two"]))).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " t")
    assert stopped["content"] == [{"type": "text", "text": "one"}]
    web.says("one two three")
    cut = (await http.post(PATH, json=body() | {"max_tokens": 3})).json()
    assert (cut["stop_reason"], cut["content"][0]["text"]) == ("max_tokens", "one")


async def test_choices_of_tools(web: WebBench, http: httpx.AsyncClient) -> None:
    for choice, text in (({"type": "any"}, CALL), ({"type": "tool", "name": "weather"}, CALL)):
        web.says(text)
        answer = (await http.post(PATH, json=body(tools=[WEATHER], tool_choice=choice))).json()
        assert [block["type"] for block in answer["content"]] == ["tool_use"]
        grammar = web.bench.engine.submitted[-1].sampling.grammar
        assert grammar is not None
        assert grammar.kind is GrammarKind.LARK
    web.says(CALL)
    none = (await http.post(PATH, json=body(tools=[WEATHER], tool_choice={"type": "none"}))).json()
    assert none["content"] == [{"type": "text", "text": CALL}]
    web.says(CALL + "\n" + CALL)
    one = {"type": "auto", "disable_parallel_tool_use": True}
    alone = (await http.post(PATH, json=body(tools=[WEATHER], tool_choice=one))).json()
    assert (len(alone["content"]), alone["stop_reason"]) == (1, "tool_use")


async def test_a_malformed_call_is_text_with_a_note(web: WebBench, http: httpx.AsyncClient) -> None:
    broken = '<tool_call>{"name": "weather", "arguments": {city}}</tool_call>'
    web.says(broken)
    answer = (await http.post(PATH, json=body(tools=[WEATHER]))).json()
    assert (answer["content"], answer["stop_reason"]) == ([{"type": "text", "text": broken}], "end_turn")
    assert answer["malformed_tool_uses"][0]["text"] == broken
    web.says(broken)
    events = events_of(await http.post(PATH, json=body(tools=[WEATHER], stream=True)))
    assert events[-2]["malformed_tool_uses"][0]["text"] == broken


async def test_a_schema_for_the_answer(web: WebBench, http: httpx.AsyncClient) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for fields in (
        {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        {"output_format": {"type": "json_schema", "schema": schema}},
    ):
        await http.post(PATH, json=body(**fields))
        grammar = web.bench.engine.submitted[-1].sampling.grammar
        assert grammar is not None
        assert json.loads(grammar.text) == schema


async def test_tokens_are_counted(web: WebBench, sdk: anthropic.AsyncAnthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    counted = await sdk.messages.count_tokens(model="m", messages=messages, tools=[WEATHER], system="s")
    await sdk.messages.create(model="m", max_tokens=5, messages=messages, tools=[WEATHER], system="s")
    assert counted.input_tokens == len(web.prompt)


USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


@pytest.mark.parametrize(
    ("fields", "status", "kind", "param"),
    [
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"model": "gpt"}, 404, "not_found_error", "model"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 9999}, 400, "invalid_request_error", "max_tokens"),
        (
            {"messages": [USER, {"role": "assistant", "content": "He"}]},
            400,
            "invalid_request_error",
            "messages[1].role",
        ),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, 400, "invalid_request_error", "messages[0].content[0]"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error", "tools[0].type"),
        (
            {"tools": [WEATHER, {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]},
            400,
            "invalid_request_error",
            "tools[1].type",
        ),
        (
            {"tools": [{"name": "f", "input_schema": {"type": "string"}}]},
            400,
            "invalid_request_error",
            "tools[0].input_schema",
        ),
        (
            {"system": [{"type": "text", "text": "s", "citations": [{"type": "char_location"}]}]},
            400,
            "invalid_request_error",
            "system[0].citations",
        ),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, 400, "invalid_request_error", "tool_choice.name"),
        ({"mcp_servers": [{"url": "x"}]}, 400, "invalid_request_error", "mcp_servers"),
        ({"top_pp": 1}, 400, "invalid_request_error", "top_pp"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, 400, "invalid_request_error", None),
    ],
)
async def test_errors_have_anthropics_shape(
    http: httpx.AsyncClient, fields: dict[str, Any], status: int, kind: str, param: str | None
) -> None:
    response = await http.post(PATH, json=body() | fields)
    error = response.json()
    assert (response.status_code, error["type"], error["error"]["type"]) == (status, "error", kind), error
    assert error["request_id"] == response.headers["request-id"]
    if param is not None:
        assert error["error"]["param"] == param


async def test_images_are_refused_clearly(sdk: anthropic.AsyncAnthropic) -> None:
    content: Any = [IMAGE]
    result: Any = [{"type": "tool_result", "tool_use_id": "x", "content": [IMAGE]}]
    for blocks in (content, result):
        with pytest.raises(anthropic.BadRequestError, match="images cannot be read here"):
            await sdk.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": blocks}])


async def test_other_errors_have_the_shape_too(web: WebBench, http: httpx.AsyncClient) -> None:
    assert (await http.get(PATH)).json()["error"]["type"] == "invalid_request_error"
    assert (await http.post(f"{PATH}/nothing")).json()["error"]["type"] == "not_found_error"
    web.bench.engine.ready = None
    overloaded = await http.post(PATH, json=body())
    assert (overloaded.status_code, overloaded.json()["error"]["type"]) == (529, "overloaded_error")
    assert "retry-after" in overloaded.headers


async def test_null_is_as_good_as_nothing(web: WebBench, http: httpx.AsyncClient) -> None:
    used = {"type": "tool_use", "id": "t", "name": "weather", "input": {}}
    thought = {"type": "thinking", "thinking": "hm", "signature": None}
    result = {"type": "tool_result", "tool_use_id": "t", "content": None, "is_error": None}
    messages = [USER, {"role": "assistant", "content": [thought, used]}, {"role": "user", "content": [result]}]
    fields: dict[str, Any] = {
        "system": None,
        "stream": None,
        "tools": [WEATHER | {"description": None}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": None},
    }
    prompts = []
    for asked in (body(*messages, **fields), body(*messages, tools=[WEATHER | {"description": ""}])):
        web.says("Sunny.")
        answer = await http.post(PATH, json=asked)
        assert answer.status_code == 200, answer.text
        prompts.append(web.prompt)
    assert prompts[0] == prompts[1]


async def test_what_has_no_effect_is_reported(http: httpx.AsyncClient) -> None:
    headers = {"x-api-key": "any", "anthropic-version": "2023-06-01", "anthropic-beta": "x"}
    fields = {"metadata": {"user_id": "u"}, "service_tier": "auto", "tools": [WEATHER | {"strict": True}]}
    response = await http.post(PATH, json=body(**fields), headers=headers)
    assert set(response.headers["x-sessile-ignored"].split(", ")) == {
        "service_tier",
        "tools[].strict",
        "anthropic-beta",
    }


async def test_an_error_in_the_middle_is_an_event(web: WebBench, http: httpx.AsyncClient) -> None:
    web.bench.engine.will_say([64, 65, 66, 257], fail_after=2)
    *_, last = events_of(await http.post(PATH, json=body(stream=True)))
    assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")
