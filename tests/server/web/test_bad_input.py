"""Bad input: each a clear 4xx that names the field, and the server goes on."""

from __future__ import annotations

import json

import httpx
import pytest

from sessile.server.engine.supervisor import EngineState
from sessile.sessions.errors import Draining, EngineError

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: object) -> bytes:
    return json.dumps({"messages": MESSAGES} | fields).encode()


def text(**fields: object) -> bytes:
    return json.dumps({"prompt": "x"} | fields).encode()


CASES = {
    "no body": (CHAT, b"", None, "empty"),
    "not JSON": (CHAT, b"{nope", None, "not valid JSON"),
    "not an object": (CHAT, b"[1]", None, "expected `object`"),
    "truncated": (CHAT, chat()[:-5], None, "not valid JSON"),
    "no messages": (CHAT, b"{}", "messages", "missing"),
    "empty messages": (CHAT, chat(messages=[]), "messages", "empty"),
    "messages are text": (CHAT, chat(messages="hi"), "messages", "expected `array`"),
    "unknown role": (CHAT, chat(messages=[{"role": "robot", "content": "x"}]), "messages[0].role", "robot"),
    "the roles that there are": (
        CHAT,
        chat(messages=[{"role": "function", "content": "x"}]),
        "messages[0].role",
        'it may be "assistant" or "developer" or "system" or "tool" or "user"',
    ),
    "the choices that there are": (CHAT, chat(tool_choice="any"), "tool_choice", '"auto" or "none" or "required"'),
    "a typing error inside": (
        CHAT,
        chat(messages=[{"role": "user", "contents": "x"}]),
        "messages[0].contents",
        "did you mean content?",
    ),
    "no content": (CHAT, chat(messages=[{"role": "user"}]), "messages[0].content", "no content"),
    "content is a number": (CHAT, chat(messages=[{"role": "user", "content": 1}]), "messages[0].content", "int"),
    "an image": (
        CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        "messages[0].content[0].type",
        "image_url",
    ),
    "tool result without id": (CHAT, chat(messages=[{"role": "tool", "content": "x"}]), "messages[0].tool_call_id", ""),
    "tool calls of a user": (
        CHAT,
        chat(
            messages=[
                {"role": "user", "content": "", "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
            ]
        ),
        "messages[0].tool_calls",
        "assistant",
    ),
    "unknown field": (CHAT, chat(temprature=1), "temprature", "did you mean temperature?"),
    "unknown field inside": (CHAT, chat(messages=[{"role": "user", "content": "", "x": 1}]), "messages[0].x", ""),
    "NaN temperature": (CHAT, chat(temperature=float("nan")), "temperature", "NaN"),
    "infinite temperature": (CHAT, chat(temperature=float("inf")), "temperature", "Infinity"),
    "huge temperature": (CHAT, b'{"messages": [], "temperature": 1e999}', "temperature", "out of range"),
    "negative temperature": (CHAT, chat(temperature=-0.1), "temperature", "0 to 100"),
    "temperature as text": (CHAT, chat(temperature="1"), "temperature", "float"),
    "NaN in a message": (
        CHAT,
        chat(messages=[{"role": "user", "content": float("nan")}]),
        "messages[0].content",
        "NaN",
    ),
    "top_p 0": (CHAT, chat(top_p=0), "top_p", "more than 0"),
    "top_p above 1": (CHAT, chat(top_p=1.5), "top_p", "at most 1"),
    "min_p above 1": (CHAT, chat(min_p=2), "min_p", "0 to 1"),
    "top_k negative": (CHAT, chat(top_k=-2), "top_k", "0 (off)"),
    "max_tokens 0": (CHAT, chat(max_tokens=0), "max_tokens", "1 or more"),
    "max_tokens negative": (CHAT, chat(max_tokens=-5), "max_tokens", "-5"),
    "max_tokens huge": (CHAT, chat(max_tokens=2**70), "max_tokens", "int"),
    "seed huge": (CHAT, chat(seed=2**63), "seed", "int"),
    "token id huge": (TEXT, text(prompt=[2**63]), "prompt[0]", "int"),
    "max_tokens with a fraction": (CHAT, chat(max_tokens=1.5), "max_tokens", "int"),
    "max_completion_tokens 0": (CHAT, chat(max_completion_tokens=0), "max_completion_tokens", "1 or more"),
    "two limits": (CHAT, chat(max_completion_tokens=1, max_tokens=2), "max_tokens", "differ"),
    "seed negative": (CHAT, chat(seed=-2), "seed", "from 0"),
    "n 0": (CHAT, chat(n=0), "n", "from 1 to 128"),
    "n 129": (CHAT, chat(n=129), "n", "from 1 to 128"),
    "n as text": (CHAT, chat(n="2"), "n", "int"),
    "a large penalty": (CHAT, chat(presence_penalty=2.5), "presence_penalty", "from -2 to 2"),
    "a negative penalty": (CHAT, chat(frequency_penalty=-2.5), "frequency_penalty", "from -2 to 2"),
    "no repetition": (CHAT, chat(repetition_penalty=0), "repetition_penalty", "more than 0"),
    "NaN penalty": (CHAT, chat(repetition_penalty=float("nan")), "repetition_penalty", "NaN"),
    "unknown response format": (CHAT, chat(response_format={"type": "yaml"}), "response_format.type", "yaml"),
    "no schema": (CHAT, chat(response_format={"type": "json_schema"}), "response_format.json_schema", "json_schema"),
    "a schema that is a list": (CHAT, chat(guided_json=[1]), "guided_json", "array"),
    "a schema that is no JSON": (CHAT, chat(guided_json="{"), "guided_json", "not a JSON object"),
    "two grammars": (CHAT, chat(guided_regex="a", guided_choice=["a"]), "guided_choice", "both"),
    "two kinds of grammar": (
        TEXT,
        text(response_format={"type": "json_object"}, structured_outputs={"regex": "a"}),
        "structured_outputs.regex",
        "both",
    ),
    "structural tags": (
        CHAT,
        chat(structured_outputs={"structural_tag": "{}"}),
        "structured_outputs.structural_tag",
        "not supported",
    ),
    "unknown structured output": (CHAT, chat(structured_outputs={"yaml": 1}), "structured_outputs.yaml", "unknown"),
    "a schema and another type": (
        CHAT,
        chat(response_format={"type": "json_object", "json_schema": {"schema": {}}}),
        "response_format.json_schema",
        "its type is json_object",
    ),
    "a style of JSON for text": (CHAT, chat(guided_whitespace_pattern=" "), "guided_whitespace_pattern", "about JSON"),
    "a style of JSON for a regex": (
        TEXT,
        text(structured_outputs={"regex": "a", "disable_any_whitespace": True}),
        "structured_outputs.disable_any_whitespace",
        "about JSON",
    ),
    "a bias for a word": (CHAT, chat(logit_bias={"word": 1}), "logit_bias", "token ids"),
    "a bias for a negative id": (CHAT, chat(logit_bias={"-1": 1}), "logit_bias", "token ids"),
    "a large bias": (CHAT, chat(logit_bias={"5": 101}), "logit_bias", "from -100 to 100"),
    "many biases": (CHAT, chat(logit_bias={str(i): 1 for i in range(1025)}), "logit_bias", "at most 1024"),
    "forced tool": (CHAT, chat(tool_choice="required"), "tool_choice", "auto"),
    "a tool without a name": (CHAT, chat(tools=[{"type": "function", "function": {}}]), "tools[0]", "name"),
    "a tool that is text": (CHAT, chat(tools=["f"]), "tools[0]", "object"),
    "too many logprobs": (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs", "20"),
    "top_logprobs alone": (CHAT, chat(top_logprobs=2), "top_logprobs", "logprobs"),
    "stream options alone": (CHAT, chat(stream_options={"include_usage": True}), "stream_options", "stream"),
    "unknown stream option": (CHAT, chat(stream=True, stream_options={"x": 1}), "stream_options.x", ""),
    "stop is a number": (CHAT, chat(stop=5), "stop", "int"),
    "stop has a number": (CHAT, chat(stop=["a", 5]), "stop[1]", "int"),
    "invalid UTF-8": (CHAT, b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', "content", "UTF-8"),
    "half a surrogate pair": (
        CHAT,
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        "messages[0].content",
        "surrogate",
    ),
    "half a pair in a name": (CHAT, b'{"metadata": {"\\udc00": 1}}', "metadata", "surrogate"),
    "a whole pair in what is cut off": (TEXT, b'{"prompt": "\\ud83d\\ude00"', None, "not valid JSON"),
    "a byte order mark": (CHAT, b"\xef\xbb\xbf" + chat(), None, "byte order mark"),
    "a control character": (CHAT, b'{"messages": [{"role": "user", "content": "\x01"}]}', None, "not valid JSON"),
    "deep": (CHAT, b'{"verbosity": ' + b"[" * 60_000, None, "nested too deeply"),
    "deep tools": (CHAT, b'{"tools": ' + b'[{"a":' * 20_000, None, ""),
    "empty prompt": (TEXT, text(prompt=""), "prompt", "empty"),
    "no prompt": (TEXT, b"{}", "prompt", "missing"),
    "an empty list as prompt": (TEXT, text(prompt=[]), "prompt", "empty"),
    "an empty text in a list": (TEXT, text(prompt=[""]), "prompt", "empty"),
    "two prompts": (TEXT, text(prompt=["a", "b"]), "prompt", "several"),
    "mixed prompt": (TEXT, text(prompt=[1, "b"]), "prompt", "several"),
    "prompt is a number": (TEXT, text(prompt=5), "prompt", "int"),
    "an answer's beginning": (CHAT, chat(continue_final_message=True), "continue_final_message", "send false"),
    "a prompt without its end": (CHAT, chat(add_generation_prompt=False), "add_generation_prompt", "send true"),
    "special tokens as text": (TEXT, text(skip_special_tokens=False), "skip_special_tokens", "send true"),
    "beams": (TEXT, text(use_beam_search=True), "use_beam_search", "send false"),
    "a length penalty": (CHAT, chat(length_penalty=1.2), "length_penalty", "send 1"),
    "a salt": (CHAT, chat(cache_salt="s"), "cache_salt", "leave it out"),
    "words that are bad": (CHAT, chat(bad_words=["x"]), "bad_words", "leave it out"),
    "echo": (TEXT, text(echo=True), "echo", "false"),
    "best_of": (TEXT, text(best_of=3), "best_of", "leave it out"),
    "suffix": (TEXT, text(suffix="x"), "suffix", "leave it out"),
    "logprobs out of range": (TEXT, text(logprobs=50), "logprobs", "20"),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_400_names_the_field(client: httpx.AsyncClient, stage, name: str) -> None:
    path, body, field, words = CASES[name]
    response = await client.post(path, content=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field
    assert words.lower() in error["message"].lower()
    assert stage.turns.requests == []
    assert (await client.post(CHAT, content=chat())).status_code == 200


@pytest.mark.parametrize(
    "body",
    [b'{"%s": 1}', b'{"messages": [{"role": "%s"}]}', b'{"metadata": {"%s": NaN}}'],
    ids=["a field", "a value", "a name"],
)
async def test_what_was_sent_is_not_sent_back_as_a_whole(client: httpx.AsyncClient, body: bytes) -> None:
    """Nor is the nearest field to a name of megabytes looked for: that took a quarter of a second for two."""
    response = await client.post(CHAT, content=body % (b"n" * 100_000))
    assert response.status_code == 400
    assert len(response.content) < 2000


async def test_biases_are_not_sent_back_as_a_whole(client, chat_body):
    response = await client.post(CHAT, json=chat_body | {"logit_bias": {str(token): 1000 for token in range(10_000)}})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logit_bias")
    assert len(response.content) < 5000


async def test_a_body_that_is_too_long(client, stage):
    for headers in ({}, {"transfer-encoding": "chunked"}):

        async def pieces():
            for _ in range(30):
                yield b" " * 10_000

        content = pieces() if headers else b" " * 300_000
        response = await client.post(CHAT, content=content)
        assert response.status_code == 413
        assert "200000" in response.json()["error"]["message"]
    assert stage.turns.requests == []


async def test_a_compressed_body_is_refused_as_one(client, stage):
    for path in (CHAT, "/v1/messages"):
        answer = await client.post(path, content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (415, "content-encoding")
    plain = await client.post(CHAT, content=chat(), headers={"content-encoding": "identity"})
    assert plain.status_code == 200
    assert len(stage.turns.requests) == 1


async def test_an_unknown_model(client, chat_body):
    response = await client.post(CHAT, json=chat_body | {"model": "gpt-9"})
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    message, remedy = error["message"].rstrip(")").split(" (")
    assert message == "model 'gpt-9' is not served here"
    assert remedy == "ask for 'tiny', 'default', 'm', or start the server with --model-aliases and the name"


@pytest.mark.parametrize("tenant", ["a b", "", "x" * 201, "ä"])
async def test_a_tenant_that_is_none(client, chat_body, tenant):
    response = await client.post(CHAT, json=chat_body, headers={"x-sessile-tenant": tenant.encode()})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-sessile-tenant"


async def test_paths_and_methods_that_do_not_exist(client):
    missing = await client.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert "there is no /v1/nothing here" in missing.json()["error"]["message"]
    near = await client.post("/chat/completions", content=chat())
    assert near.json()["error"]["details"]["remedy"] == f"did you mean {CHAT}?"
    wrong = await client.get(CHAT)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert (wrong.headers["allow"], wrong.json()["error"]["details"]["remedy"]) == ("POST", "it takes POST")
    several = await client.put("/v1/responses/resp_1")
    assert several.headers["allow"] == "DELETE, GET"
    assert (await client.get("/v1/messages")).headers["allow"] == "POST"


async def test_draining_refuses_new_turns(client, stage, chat_body):
    stage.draining = Draining("the server shuts down", retry_after_s=5)
    response = await client.post(CHAT, json=chat_body)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    assert (await client.get("/ready")).status_code == 503
    assert (await client.get("/health")).status_code == 200


async def test_an_engine_that_is_not_ready(client, stage, chat_body):
    stage.engine.error = EngineError("the engine is starting", retry_after_s=2)
    assert (await client.post(CHAT, json=chat_body)).status_code == 503
    assert (await client.get("/v1/models")).status_code == 503
    ready = await client.get("/ready")
    assert (ready.status_code, ready.json()["ready"], ready.headers["retry-after"]) == (503, False, "2")
    assert (await client.get("/health")).status_code == 200


async def test_a_restarting_engine_is_not_ready(client, stage):
    stage.engine.state = EngineState.RESTARTING
    ready = await client.get("/ready")
    assert ready.status_code == 503
    assert "restarting" in ready.json()["reason"]
    assert (await client.get("/health")).json()["engine"] == "restarting"
