"""What the answer must look like: each way to say it becomes the same grammar, checked under the name that was used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sessile.server.engine.grammar import GrammarKind
from sessile.sessions.errors import RequestError

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "string"}}}
CLOSED = {**SCHEMA, "additionalProperties": False}
STYLE = {"x-guidance": {"whitespace_pattern": " ?", "whitespace_flexible": False}}
J, R, C = GrammarKind.JSON_SCHEMA, GrammarKind.REGEX, GrammarKind.CHOICE

FORMS: dict[str, tuple[dict[str, Any], GrammarKind, Any]] = {
    "response_format": ({"response_format": {"type": "json_object"}}, GrammarKind.JSON_OBJECT, None),
    "response_format.json_schema.schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
        J,
        SCHEMA,
    ),
    "guided_json": ({"guided_json": json.dumps(SCHEMA)}, J, SCHEMA),
    "guided_json_object": ({"guided_json_object": True}, J, {"type": "object"}),
    "guided_regex": ({"guided_regex": "a+"}, R, "a+"),
    "guided_choice": ({"guided_choice": ["a", 'b"']}, C, ["a", 'b"']),
    "guided_grammar": ({"guided_grammar": 'start: "a"'}, GrammarKind.LARK, 'start: "a"'),
    "structured_outputs.json": (
        {
            "structured_outputs": {
                "json": SCHEMA,
                "disable_any_whitespace": True,
                "whitespace_pattern": " ?",
                "disable_additional_properties": True,
            }
        },
        J,
        {**CLOSED, **STYLE},
    ),
    "response_format.json_schema.schema and a style": (
        {
            "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
            "guided_whitespace_pattern": " ?",
        },
        J,
        {**SCHEMA, "x-guidance": {"whitespace_pattern": " ?"}},
    ),
    "response_format and a style": (
        {"response_format": {"type": "json_object"}, "guided_whitespace_pattern": " ?"},
        J,
        {"type": "object", "x-guidance": {"whitespace_pattern": " ?"}},
    ),
    "structured_outputs.json and names that are keywords": (
        {
            "structured_outputs": {
                "json": {"properties": {"properties": {"const": {"properties": {}}}}},
                "disable_additional_properties": True,
            }
        },
        J,
        {"properties": {"properties": {"const": {"properties": {}}}}, "additionalProperties": False},
    ),
    "structured_outputs.json_object": ({"structured_outputs": {"json_object": True}}, J, {"type": "object"}),
    "structured_outputs.regex": ({"structured_outputs": {"regex": "b"}}, R, "b"),
    "structured_outputs.choice": ({"structured_outputs": {"choice": ["c"]}}, C, ["c"]),
    "structured_outputs.grammar": (
        {"structured_outputs": {"grammar": 'root ::= "a"'}},
        GrammarKind.GBNF,
        'root ::= "a"',
    ),
}


@pytest.mark.parametrize("field", FORMS)
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_each_form_becomes_a_grammar(client, stage, chat_body, path: str, field: str) -> None:
    fields, kind, meaning = FORMS[field]
    body = (chat_body if path == CHAT else {"prompt": "x"}) | fields
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    grammar = stage.turns.requests[0].sampling.grammar
    assert grammar is not None and grammar.kind is kind
    text = grammar.text if kind in (R, GrammarKind.LARK, GrammarKind.GBNF) else json.loads(grammar.text or "null")
    assert text == meaning
    assert list(text) == list(meaning or []) if isinstance(text, dict) else True, (
        "the order of keys is that of the answer"
    )
    assert stage.turns.checked == [(grammar, field.partition(" and ")[0])]


async def test_text_and_nothing_are_no_grammar(client, stage, chat_body) -> None:
    for fields in ({"response_format": {"type": "text"}}, {"structured_outputs": None}, {"guided_json_object": False}):
        await client.post(CHAT, json=chat_body | fields)
    assert [turn.sampling.grammar for turn in stage.turns.requests] == [None] * 3
    assert stage.turns.checked == []


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_not_supported_is_a_400(client, stage, chat_body, stream: bool) -> None:
    stage.turns.grammar_error = RequestError("the keyword 'not' at #/not is not supported", field="guided_json")
    response = await client.post(CHAT, json=chat_body | {"guided_json": {"not": {}}, "stream": stream})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "guided_json"
    assert "'not' at #/not" in response.json()["error"]["message"]
    assert stage.turns.requests == []


async def test_penalties_and_biases_reach_the_turn(client, stage, chat_body) -> None:
    sent = {
        "repetition_penalty": 1.2,
        "presence_penalty": -1,
        "frequency_penalty": 0.5,
        "logit_bias": {"7": -100, "8": 1.5},
    }
    response = await client.post(CHAT, json=chat_body | sent)
    assert response.status_code == 200, response.text
    sampling = stage.turns.requests[0].sampling
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.2, -1, 0.5)
    assert sampling.logit_bias == {7: -100.0, 8: 1.5}
