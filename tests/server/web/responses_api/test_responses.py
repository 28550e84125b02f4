"""``/v1/responses``: events, chains that outlive restarts, conversations, and what is kept."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from web_bench import WebBench

from sessile.server.engine.grammar import GrammarKind
from sessile.server.text.answer_format import ReasoningFormat, TextConfig, ToolFormat

PATH = "/v1/responses"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":  "Paris"}}\n</tool_call>'


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for piece in response.text.split("\n\n")[:-1]:
        name, data = piece.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


async def created(http: httpx.AsyncClient, given: Any = "hi", **fields: Any) -> dict[str, Any]:
    response = await http.post(PATH, json={"input": given, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def output_text(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


async def test_a_response(web: WebBench, http: httpx.AsyncClient) -> None:
    web.says("Hello.")
    response = await created(http, instructions="Be brief.", metadata={"a": "b"})
    assert (response["object"], response["status"], response["model"]) == ("response", "completed", "scripted")
    assert (output_text(response), response["metadata"]) == ("Hello.", {"a": "b"})
    usage = response["usage"]
    assert usage["input_tokens"] == len(web.prompt) == sum(usage["prompt_tokens_by_source"].values())
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    details = usage["input_tokens_details"]
    assert details["cached_tokens"] + details["cache_write_tokens"] == usage["input_tokens"]
    assert web.shown.startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert (await http.get(f"{PATH}/{response['id']}")).json() == response


async def test_the_events_of_a_stream(web: WebBench, http: httpx.AsyncClient) -> None:
    web.text = TextConfig(tool_parser=ToolFormat.HERMES, reasoning_parser=ReasoningFormat.THINK)
    web.restart()
    async with web.client() as client:
        web.says("<think>why</think>so\n" + CALL)
        events = events_of(await client.post(PATH, json={"input": "hi", "tools": [WEATHER], "stream": True}))
        kinds = [event["type"].removeprefix("response.") for event in events]
        once = [kind for index, kind in enumerate(kinds) if index == 0 or kinds[index - 1] != kind]
        assert once == [
            *("created", "in_progress"),
            *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
            *("content_part.done", "output_item.done"),
            *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
            *("content_part.done", "output_item.done"),
            *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
            "completed",
        ]
        pieces = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
        assert "".join(pieces) == '{"city":  "Paris"}'
        last = events[-1]["response"]
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert last["output"] == done
        assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
        assert last["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        assert (await client.get(f"{PATH}/{last['id']}")).json() == last  # on disk before it is told


async def ten_turns(web: WebBench, restarts: tuple[int, ...]) -> list[list[int]]:
    """A chain of responses, half of them with a function call; the server starts anew after the turns ``restarts``.

    Returns each turn's whole context, prompt and answer.
    """
    before, contexts = None, list[list[int]]()
    given: Any = "turn 0"
    for turn in range(10):
        said = web.says(f"Let me look {turn}.\n{CALL}" if turn % 2 == 0 else f"It is sunny {turn}.")
        async with web.client() as http:
            response = await created(http, given, tools=[WEATHER], instructions="s", previous_response_id=before)
        assert web.shown.count("<|im_start|>system\ns\n") == 1
        contexts.append([*web.prompt, *said])
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        given = [{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"} for call in calls]
        given = given or f"turn {turn + 1}"
        before = response["id"]
        if turn in restarts:
            web.restart()
    return contexts


async def test_vllm_43244_a_chain_of_ten_turns_survives_restarts_bit_equal(web: WebBench, tmp_path: Path) -> None:
    """vLLM #43244, #37938: function calls of earlier turns are kept, in the very tokens that were sampled."""
    contexts = await ten_turns(web, restarts=(3, 4, 8))
    for earlier, later in itertools.pairwise(contexts):
        assert later[: len(earlier)] == earlier
    assert web.shown.count(CALL) == 5
    assert len(await web.bench.store.sessions("", limit=10)) == 1
    with WebBench(tmp_path / "undisturbed") as undisturbed:
        assert await ten_turns(undisturbed, restarts=()) == contexts


async def test_a_response_can_be_continued_twice(web: WebBench, http: httpx.AsyncClient) -> None:
    said = web.says("Hello.")
    first = await created(http)
    prompt = web.prompt
    for question in ("one", "two"):
        await created(http, question, previous_response_id=first["id"])
        assert web.prompt[: len(prompt) + len(said)] == [*prompt, *said]
        assert web.shown.endswith(f"user\n{question}<|im_end|>\n<|im_start|>assistant\n")


async def test_instructions_hold_for_one_response(web: WebBench, http: httpx.AsyncClient) -> None:
    web.says("Hello.")
    first = await created(http, instructions="one")
    await created(http, "more", instructions="two", previous_response_id=first["id"])
    assert web.shown.startswith("<|im_start|>system\ntwo<|im_end|>\n<|im_start|>user\nhi<|im_end|>")
    await created(http, "more", previous_response_id=first["id"])
    assert web.shown.startswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>")


async def test_items_that_the_client_keeps_itself(web: WebBench, http: httpx.AsyncClient) -> None:
    """store false: the client sends the output back as items, and the recorded tokens are replayed."""
    said = web.says("Let me look.\n" + CALL)
    first = await created(http, tools=[WEATHER], store=False)
    prompt = web.prompt
    assert (await http.get(f"{PATH}/{first['id']}")).status_code == 404
    call = first["output"][-1]
    rewritten = {**call, "arguments": json.dumps(json.loads(call["arguments"]))}
    items = [
        {"role": "user", "content": "hi"},
        *first["output"][:-1],
        rewritten,
        {"type": "function_call_output", "call_id": call["call_id"], "output": [{"type": "input_text", "text": "x"}]},
    ]
    await created(http, items, tools=[WEATHER], store=False)
    assert web.prompt[: len(prompt) + len(said)] == [*prompt, *said]
    assert await web.bench.store.sessions("", limit=10) == []


async def test_a_conversation_is_a_session(web: WebBench, http: httpx.AsyncClient) -> None:
    opened = (await http.post("/v1/conversations", json={"items": [{"role": "user", "content": "I am Ann."}]})).json()
    assert opened["id"].startswith("ses_")
    web.says("Hello Ann.")
    first = await created(http, "Who am I?", conversation=opened["id"], instructions="s")
    assert first["conversation"] == {"id": opened["id"]}
    assert "I am Ann." in web.shown
    second = await created(http, "And?", conversation={"id": opened["id"]})
    assert web.shown.startswith("<|im_start|>system\ns<|im_end|>")
    assert web.shown.count("Hello Ann.") == 1
    session = await web.bench.store.session(opened["id"])
    assert session is not None
    assert session.place.num_turns == 2
    third = await created(http, "More?", previous_response_id=second["id"])
    assert third["conversation"] == {"id": opened["id"]}
    assert (await http.get(f"/v1/conversations/{opened['id']}")).json()["id"] == opened["id"]
    assert (await http.delete(f"/v1/conversations/{opened['id']}")).json()["deleted"]
    gone = await http.post(PATH, json={"input": "x", "conversation": opened["id"]})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "session_not_found")


@pytest.mark.parametrize(
    ("items", "param"),
    [([{"type": "image"}], "items[0].type"), ([{"role": "user", "content": "far too long " * 2000}], "items")],
    ids=["unreadable", "too long"],
)
async def test_a_conversation_that_cannot_begin_is_not_left_open(
    web: WebBench, http: httpx.AsyncClient, items: list[Any], param: str
) -> None:
    refused = await http.post("/v1/conversations", json={"items": items})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
    assert await web.bench.store.sessions("", limit=10) == []


async def test_what_is_kept_can_be_listed_and_deleted(web: WebBench, http: httpx.AsyncClient) -> None:
    nameless = await created(http, [{"type": None, "id": None, "status": None, "role": "user", "content": "hi"}])
    page = (await http.get(f"{PATH}/{nameless['id']}/input_items")).json()
    assert [(item["type"], item["id"], item["status"]) for item in page["data"]] == [("message", "item_0", "completed")]

    items = [{"role": "user", "content": f"{index}", "id": f"it_{index}"} for index in range(5)]
    response = await created(http, items)
    page = (await http.get(f"{PATH}/{response['id']}/input_items", params={"limit": 2})).json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == (["it_4", "it_3"], True)
    rest = {"limit": 9, "after": page["last_id"]}
    page = (await http.get(f"{PATH}/{response['id']}/input_items", params=rest)).json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == (["it_2", "it_1", "it_0"], False)
    assert (await http.delete(f"{PATH}/{response['id']}")).json() == {
        "id": response["id"],
        "object": "response",
        "deleted": True,
    }
    for again in (http.get, http.delete):
        missing = await again(f"{PATH}/{response['id']}")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "response_not_found")


async def test_vllm_35905_what_is_kept_is_bounded_in_time(web: WebBench, http: httpx.AsyncClient) -> None:
    response = await created(http)
    other = await http.get(f"{PATH}/{response['id']}", headers={"x-sessile-tenant": "other"})
    assert other.status_code == 404
    web.bench.clock.now += 31 * 86_400
    assert (await http.get(f"{PATH}/{response['id']}")).status_code == 404
    await web.bench.store.prune(web.bench.clock.now - 7 * 86_400, web.bench.clock.now)
    assert await web.bench.store.sessions("", limit=10) == []
    assert await web.bench.store.response("", response["id"]) is None


async def test_a_response_keeps_its_tokens_from_being_forgotten(web: WebBench, http: httpx.AsyncClient) -> None:
    said = web.says("Hello.")
    first = await created(http)
    prompt = web.prompt
    web.bench.clock.now += 10 * 86_400
    await web.bench.store.prune(web.bench.clock.now - 7 * 86_400, web.bench.clock.now)
    web.restart()
    async with web.client() as client:
        await created(client, "more", previous_response_id=first["id"])
    assert web.prompt[: len(prompt) + len(said)] == [*prompt, *said]


async def test_an_answer_that_is_cut_off(web: WebBench, http: httpx.AsyncClient) -> None:
    web.says("one two three")
    response = await created(http, max_output_tokens=3)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"


async def test_a_malformed_call_is_text_with_a_note(web: WebBench, http: httpx.AsyncClient) -> None:
    broken = '<tool_call>{"name": "weather", "arguments": {"city": Paris}}</tool_call>'
    web.says(broken)
    events = events_of(await http.post(PATH, json={"input": "hi", "tools": [WEATHER], "stream": True}))
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["type"], item["status"]) for item in items] == [
        ("function_call", "incomplete"),
        ("message", "completed"),
    ]
    last = events[-1]["response"]
    assert last["output"] == items[1:]
    assert (output_text(last), last["malformed_tool_calls"][0]["text"]) == (broken, broken)


async def test_an_error_in_the_middle_is_an_event(web: WebBench, http: httpx.AsyncClient) -> None:
    web.bench.engine.will_say([64, 65, 66, 257], fail_after=2)
    events = events_of(await http.post(PATH, json={"input": "hi", "stream": True}))
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.failed", "failed")
    assert events[-1]["response"]["error"]["code"] == "engine_unavailable"


async def test_the_form_of_an_answer(web: WebBench, http: httpx.AsyncClient) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for wanted, kind in (
        ({"type": "json_schema", "name": "n", "schema": schema, "strict": True}, GrammarKind.JSON_SCHEMA),
        ({"type": "json_object"}, GrammarKind.JSON_OBJECT),
    ):
        await created(http, text={"format": wanted})
        grammar = web.bench.engine.submitted[-1].sampling.grammar
        assert grammar is not None
        assert grammar.kind is kind
    web.says(CALL)
    await created(http, tools=[WEATHER], tool_choice={"type": "function", "name": "weather"})
    grammar = web.bench.engine.submitted[-1].sampling.grammar
    assert grammar is not None
    assert grammar.kind is GrammarKind.LARK


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input": ""}, 400, "input"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, 400, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            400,
            "input[0].content[0]",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, 400, "input[0].call_id"),
        ({"input": [{"role": "tool", "content": "x"}]}, 400, "input[0].role"),
        ({"model": "gpt"}, 404, "model"),
        ({"previous_response_id": "resp_x"}, 404, "previous_response_id"),
        ({"conversation": "ses_x"}, 404, "conversation"),
        ({"conversation": "ses_x", "previous_response_id": "resp_x"}, 400, "previous_response_id"),
        ({"conversation": "ses_x", "store": False}, 400, "store"),
        ({"tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x", "server_url": "y"}]}, 400, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}]}, 400, "tools[0].parameters"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, 400, "text.format.schema"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"background": True}, 400, "background"),
        ({"truncation": "auto"}, 400, "truncation"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens"),
        ({"temprature": 1}, 400, "temprature"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, 400, "text.format.schema"),
    ],
)
async def test_bad_input_names_its_field(
    http: httpx.AsyncClient, fields: dict[str, Any], status: int, param: str
) -> None:
    response = await http.post(PATH, json={"input": "hi", **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (status, param), response.text


async def test_what_has_no_effect_is_reported(http: httpx.AsyncClient) -> None:
    fields = {"user": "u", "include": [], "reasoning": {"effort": "low"}, "tools": [WEATHER | {"strict": True}]}
    response = await http.post(PATH, json={"input": "hi", **fields})
    assert set(response.headers["x-sessile-ignored"].split(", ")) == {
        "include",
        "reasoning.effort",
        "tools[].strict",
    }


async def test_a_tool_loop_with_openais_client(web: WebBench, sdk: openai.AsyncOpenAI) -> None:
    said = web.says("Let me look.\n" + CALL)
    async with sdk.responses.stream(model="m", input="Paris?", tools=[WEATHER]) as stream:
        kinds = [event.type async for event in stream]
        first = await stream.get_final_response()
    assert kinds[0] == "response.created"
    prompt = web.prompt
    call = first.output[-1]
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"city": "Paris"}
    web.says("It is sunny.")
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = await sdk.responses.create(model="m", input=[output], tools=[WEATHER], previous_response_id=first.id)
    assert second.output_text == "It is sunny."
    assert web.prompt[: len(prompt) + len(said)] == [*prompt, *said]
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= 0.95 * (len(prompt) + len(said))
    assert (await sdk.responses.retrieve(second.id)).output_text == "It is sunny."
    assert (await sdk.responses.input_items.list(second.id)).data[0].type == "function_call_output"
    counted = await sdk.responses.input_tokens.count(
        model="m", input="more", tools=[WEATHER], previous_response_id=second.id
    )
    assert counted.input_tokens > second.usage.input_tokens
    await sdk.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        await sdk.responses.retrieve(second.id)


async def test_chat_tools_with_openais_client(web: WebBench, sdk: openai.AsyncOpenAI) -> None:
    said = web.says("Let me look.\n" + CALL)
    function = {key: value for key, value in WEATHER.items() if key != "type"}
    tools: Any = [{"type": "function", "function": function}]
    messages: list[Any] = [{"role": "user", "content": "Paris?"}]
    async with sdk.chat.completions.stream(model="m", messages=messages, tools=tools) as stream:
        async for _ in stream:
            pass
        first = (await stream.get_final_completion()).choices[0]
    assert first.finish_reason == "tool_calls"
    prompt = web.prompt
    assert first.message.tool_calls
    call = first.message.tool_calls[0]
    arguments = json.dumps(json.loads(call.function.arguments), indent=1)
    again = {"id": call.id, "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages += [
        {"role": "assistant", "content": first.message.content, "tool_calls": [again]},
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    second = await sdk.chat.completions.create(model="m", messages=messages, tools=tools)
    assert web.prompt[: len(prompt) + len(said)] == [*prompt, *said]
    assert second.usage is not None
    assert second.usage.prompt_tokens == len(web.prompt)
