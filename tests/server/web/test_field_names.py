"""Errors name their field as the client's own API calls it, wherever they are found."""

from __future__ import annotations

from typing import Any

import httpx

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
LONG = "x" * 201
NOT = {"type": "object", "properties": {"a": {"not": {}}}}
BAD_FORMAT = {"type": "json_schema", "schema": NOT}


def chat_tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


CHAT_TOOLS = [chat_tool("f", {}), chat_tool("g", NOT)]
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat: no room": (CHAT, {"messages": HI, "max_tokens": 10**6}, "max_tokens"),
    "chat: no room, newer name": (CHAT, {"messages": HI, "max_completion_tokens": 10**6}, "max_completion_tokens"),
    "chat: no such tool": (
        CHAT,
        {"messages": HI, "tools": CHAT_TOOLS, "tool_choice": {"type": "function", "function": {"name": "h"}}},
        "tool_choice.function.name",
    ),
    "chat: the second tool": (
        CHAT,
        {"messages": HI, "tools": CHAT_TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tools[1].function.parameters",
    ),
    "chat: a call's name": (
        CHAT,
        {"messages": [*HI, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": LONG}}]}, *HI]},
        "messages[1].tool_calls[0].function.name",
    ),
    "chat: a schema": (
        CHAT,
        {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {"schema": NOT}}},
        "response_format.json_schema.schema",
    ),
    "completions: no room": (TEXT, {"prompt": "x", "max_tokens": 10**6}, "max_tokens"),
    "messages: no room": (MESSAGES, {"messages": HI, "max_tokens": 10**6}, "max_tokens"),
    "messages: a schema": (
        MESSAGES,
        {"messages": HI, "max_tokens": 9, "output_config": {"format": BAD_FORMAT}},
        "output_config.format.schema",
    ),
    "messages: a schema, older name": (
        MESSAGES,
        {"messages": HI, "max_tokens": 9, "output_format": BAD_FORMAT, "stream": True},
        "output_format.schema",
    ),
    "messages: two schemas": (
        MESSAGES,
        {"messages": HI, "max_tokens": 9, "output_format": BAD_FORMAT, "output_config": {"format": BAD_FORMAT}},
        "output_format",
    ),
    "messages: a tool's schema": (
        MESSAGES,
        {
            "messages": HI,
            "max_tokens": 9,
            "tools": [{"name": "f", "input_schema": {}}, {"name": "g", "input_schema": NOT}],
            "tool_choice": {"type": "any"},
        },
        "tools[1].input_schema",
    ),
    "messages: a tool without a name": (
        MESSAGES,
        {"messages": HI, "max_tokens": 9, "tools": [{"name": "", "input_schema": {}}]},
        "tools[0].name",
    ),
    "messages: a stop sequence": (
        MESSAGES,
        {"messages": HI, "max_tokens": 9, "stop_sequences": ["a", ""]},
        "stop_sequences[1]",
    ),
    "messages: a result's id": (
        MESSAGES,
        {
            "system": "s",
            "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": LONG}]}],
            "max_tokens": 9,
        },
        "messages[0].content[0].tool_use_id",
    ),
    "messages: a call's name": (
        MESSAGES,
        {
            "messages": [
                *HI,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": LONG, "input": {}}]},
                *HI,
            ],
            "max_tokens": 9,
        },
        "messages[1].content[0].name",
    ),
    "count_tokens: a tool without a name": (
        f"{MESSAGES}/count_tokens",
        {"messages": HI, "tools": [{"name": "", "input_schema": {}}]},
        "tools[0].name",
    ),
    "responses: no room": (RESPONSES, {"input": "hi", "max_output_tokens": 10**6}, "max_output_tokens"),
    "responses: a schema": (RESPONSES, {"input": "hi", "text": {"format": BAD_FORMAT}}, "text.format.schema"),
    "chat: large arguments": (
        CHAT,
        {"messages": HI, "chat_template_kwargs": {"x": ["y"] * 50_000}},
        "chat_template_kwargs",
    ),
    "chat: many messages": (CHAT, {"messages": HI * 10_001}, "messages"),
    "messages: many messages": (MESSAGES, {"messages": HI * 10_001, "max_tokens": 9}, "messages"),
    "responses: many items": (RESPONSES, {"input": HI * 10_001}, "input"),
    "responses: no such conversation": (RESPONSES, {"input": "hi", "conversation": "ses_x"}, "conversation"),
    "responses: a tool's schema": (
        RESPONSES,
        {"input": "hi", "tools": [{"type": "function", "name": "g", "parameters": NOT}], "tool_choice": "required"},
        "tools[0].parameters",
    ),
    "responses: a result's id": (
        RESPONSES,
        {"input": [{"type": "function_call_output", "call_id": LONG, "output": "x"}]},
        "input[0].call_id",
    ),
    "responses: a call's name": (
        RESPONSES,
        {"input": [{"type": "function_call", "call_id": "a", "name": LONG}]},
        "input[0].name",
    ),
}


async def test_the_field_has_the_clients_name(http: httpx.AsyncClient) -> None:
    for name, (path, body, field) in CASES.items():
        answer = await http.post(path, json=body)
        error = answer.json()["error"]
        assert answer.status_code in (400, 404), name
        assert (error["param"], error["details"]["field"]) == (field, field), (name, error)


async def test_the_remedy_has_the_clients_name_too(http: httpx.AsyncClient) -> None:
    error = (await http.post(RESPONSES, json={"input": "hi", "max_output_tokens": 10**6})).json()["error"]
    assert "or leave max_output_tokens out" in error["message"]
    assert error["code"] == "context_overflow"


async def test_a_word_that_is_a_fields_name_elsewhere_stays(http: httpx.AsyncClient) -> None:
    error = (await http.post(RESPONSES, json={"input": HI * 10_001})).json()["error"]
    assert "10001 messages" in error["message"]
