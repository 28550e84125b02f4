"""Clients' grammars: what can be used, what is refused and in which words, and that none of them takes the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from byte_text import byte_tokenizer

from sessile.server.engine.grammar import Grammar, GrammarKind
from sessile.server.text.grammar_checker import GrammarChecker
from sessile.server.text.grammar_config import GrammarConfig
from sessile.sessions.errors import RequestError

VOCAB = 300


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    made = GrammarChecker(byte_tokenizer(), GrammarConfig(compile_seconds=1))
    yield made
    made.close()


def schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": inner}, "required": ["a"]}
    return inner


@pytest.mark.parametrize(
    "grammar",
    [
        schema({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}),
        schema({"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}),
        schema({"enum": [f"value {i}" for i in range(2000)]}),
        schema(nested(30)),
        Grammar(GrammarKind.JSON_OBJECT),
        Grammar(GrammarKind.REGEX, r"\d{4}-\d{2}"),
        Grammar(GrammarKind.CHOICE, '["yes", "a \\"quoted\\" no", "é\\n"]'),
        Grammar(GrammarKind.CHOICE, json.dumps([f"choice {i}" for i in range(3000)])),
        Grammar(GrammarKind.LARK, 'start: <|im_start|> "a"+'),
        Grammar(GrammarKind.GBNF, 'root ::= "a" | "b" [0-9]+'),
    ],
    ids=lambda grammar: str(grammar.kind),
)
async def test_these_can_be_used(checker: GrammarChecker, grammar: Grammar) -> None:
    await checker.check(grammar, VOCAB)


@pytest.mark.parametrize(
    "grammar",
    [
        schema({"const": "é🐘"}),
        schema({"type": "integer", "minimum": 10**18, "maximum": 10**18 + 5}),
        schema({"properties": {"a": {"const": 1}}, "required": ["a"], "x-guidance": {"whitespace_flexible": False}}),
        Grammar(GrammarKind.CHOICE, '["yes"]'),
        Grammar(GrammarKind.CHOICE, '["yes", "yes"]'),
        Grammar(GrammarKind.REGEX, "^yes$"),
        Grammar(GrammarKind.LARK, 'start: <|im_start|> "a"'),
        Grammar(GrammarKind.GBNF, 'root ::= "yes"'),
    ],
    ids=lambda grammar: f"{grammar.kind} {grammar.text[:20]}",
)
async def test_a_grammar_may_leave_one_way_to_go_on(checker: GrammarChecker, grammar: Grammar) -> None:
    await checker.check(grammar, VOCAB)


UNSUPPORTED = [
    (
        {"properties": {"a/b": {"anyOf": [{"type": "null"}, {"not": {"type": "null"}}]}}},
        "#/properties/a~1b/anyOf/1/not",
    ),
    ({"type": "array", "items": {"uniqueItems": True}}, "#/items/uniqueItems"),
    ({"if": {"type": "null"}, "then": False}, "#/if"),
    ({"type": "array", "contains": {"type": "integer"}}, "#/contains"),
    ({"properties": {"q": {"dependentRequired": {"a": ["b"]}}}}, "#/properties/q/dependentRequired"),
    ({"$defs": {"x": {"pattern": "(?=a)b"}}, "items": {"$ref": "#/$defs/x"}, "type": "array"}, "#/$defs/x/pattern"),
    ({"properties": {"q": {"$ref": "#/definitions/x"}}}, "#/properties/q/$ref"),
    ({"items": {"$ref": "http://example.org/z"}, "type": "array"}, "#/items/$ref"),
    ({"properties": {"q": {"type": "text"}}}, "#/properties/q/type"),
    ({"properties": {"q": {"type": "string", "format": "weird"}}}, "#/properties/q/format"),
    ({"properties": {"q": {"oneOf": [{"type": "string"}, {"minLength": 3}]}}}, "#/properties/q/oneOf"),
    ({"type": "object", "properties": {"x": {}, "y": {}}, "minProperties": 2}, "#/minProperties"),
]


@pytest.mark.parametrize(("value", "pointer"), UNSUPPORTED, ids=[pointer for _, pointer in UNSUPPORTED])
async def test_what_is_not_supported_is_named_with_its_place(
    checker: GrammarChecker, value: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(RequestError) as caught:
        await checker.check(schema(value), VOCAB, "guided_json")
    keyword = pointer.rpartition("/")[2]
    assert f"the keyword {keyword!r} at {pointer} " in caught.value.message
    assert caught.value.field == "guided_json"


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar(GrammarKind.JSON_SCHEMA, "{"), "not a JSON object"),
        (Grammar(GrammarKind.JSON_SCHEMA, "[]"), "not a JSON object"),
        (schema({"type": "integer", "minimum": 5, "maximum": 3}), "Unsatisfiable"),
        (schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "no text satisfies it"),
        (schema(nested(40)), "nested 81 deep"),
        (schema({"const": "x" * 300_000}), "--grammar-max-bytes"),
        (Grammar(GrammarKind.REGEX, "(a"), "unclosed group"),
        (Grammar(GrammarKind.REGEX, "(" * 20_000 + ")" * 20_000), "nested"),
        (Grammar(GrammarKind.CHOICE, "[]"), "one of several strings"),
        (Grammar(GrammarKind.LARK, 'start: <|unknown|> "a"'), "special token"),
        (Grammar(GrammarKind.LARK, "start: nowhere"), "nowhere"),
        (Grammar(GrammarKind.GBNF, "root ::= ("), "not GBNF"),
    ],
)
async def test_other_errors_say_what_is_wrong(checker: GrammarChecker, grammar: Grammar, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        await checker.check(grammar, VOCAB)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


HOSTILE = {
    "many repeats": Grammar(GrammarKind.REGEX, "((a{1000}){1000}){1000}"),
    "a large remainder": schema({"type": "integer", "multipleOf": 1_000_003}),
    "a stack of rules": Grammar(
        GrammarKind.LARK, "start: r0\n" + "\n".join(f'r{i}: "x" r{(i + 1) % 9000}' for i in range(9000))
    ),
    "many patterns": schema({"properties": {f"p{i}": {"pattern": "[a-z]{3,8}"} for i in range(6000)}}),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_grammars_are_refused_and_harm_nobody(checker: GrammarChecker, name: str) -> None:
    with pytest.raises(RequestError) as caught:
        await checker.check(HOSTILE[name], VOCAB)
    assert caught.value.message
    await checker.check(Grammar(GrammarKind.REGEX, "[a-z]+"), VOCAB)


async def test_what_was_found_is_remembered_without_the_child() -> None:
    checker = GrammarChecker(byte_tokenizer(), GrammarConfig())
    grammar, bad = Grammar(GrammarKind.REGEX, "a+"), schema({"not": {}})
    await checker.check(grammar, VOCAB)
    with pytest.raises(RequestError):
        await checker.check(bad, VOCAB)
    checker.close()
    await checker.check(grammar, VOCAB)
    with pytest.raises(RequestError, match="'not' at #/not"):
        await checker.check(bad, VOCAB)
