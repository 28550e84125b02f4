"""Two hundred answers to schemas of all kinds, drawn at temperature 1 from a model that knows nothing."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from grammar_bench import GrammarBench, RandomDrafter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessile.server.engine.grammar import Grammar, GrammarKind
from sessile.server.engine.messages import FinishReason

NAMES = st.sampled_from(["path", "line", "query", "unit", "a/b", "größe", 'q"', "limit"])
LEAVES = st.one_of(
    st.builds(lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
              st.integers(0, 3), st.integers(0, 9)),
    st.builds(lambda least, more: {"type": "integer", "minimum": least, "maximum": least + more},
              st.integers(-50, 50), st.integers(0, 400)),
    st.builds(lambda least: {"type": "number", "exclusiveMinimum": least, "maximum": least + 7}, st.integers(-5, 5)),
    st.sampled_from([
        {"type": "boolean"}, {"type": "null"}, {"const": {"k": [1, None]}}, {"type": ["boolean", "null"]},
        {"type": "string", "pattern": "^[a-z]{1,4}(-[0-9]{2})?$"}, {"type": "string", "format": "date"},
        {"type": "string", "format": "ipv4"}, {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 95},
    ]),
    st.lists(st.one_of(st.text(max_size=6), st.integers(-9, 9), st.none()), min_size=1, max_size=4).map(
        lambda values: {"enum": values}
    ),
)  # fmt: skip


def inside(schemas: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    objects = st.dictionaries(NAMES, schemas, min_size=1, max_size=4).flatmap(
        lambda properties: st.lists(st.sampled_from(sorted(properties)), unique=True).map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            }
        )
    )
    arrays = st.builds(
        lambda items, least, more: {"type": "array", "items": items, "minItems": least, "maxItems": least + more},
        schemas,
        st.integers(0, 2),
        st.integers(0, 2),
    )
    either = st.lists(schemas, min_size=1, max_size=3).map(lambda options: {"anyOf": options})
    return st.one_of(objects, arrays, either)


SCHEMAS = st.recursive(LEAVES, inside, max_leaves=6)
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "boolean"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
}


@pytest.fixture(scope="module")
def bench() -> GrammarBench:
    return GrammarBench(drafter=RandomDrafter(3, 4, 500))


def answers(bench: GrammarBench, schema: dict[str, Any], seeds: range) -> list[str]:
    """The texts of turns that ended by themselves."""
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    turns = [f"{seed} {len(bench.last)}" for seed in seeds]
    for seed, turn_id in zip(seeds, turns, strict=True):
        bench.submit(turn_id, grammar, [seed, len(turn_id), 7], seed=seed, max_tokens=600)
    bench.run()
    whole = [turn_id for turn_id in turns if bench.last[turn_id].finish_reason is FinishReason.STOP]
    return [bench.text(turn_id) for turn_id in whole]


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(SCHEMAS)
def test_answers_parse_and_are_valid(bench: GrammarBench, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for text in answers(bench, schema, range(4)):
        validator.validate(json.loads(text))


def test_recursive_schemas(bench: GrammarBench) -> None:
    validator = jsonschema.Draft202012Validator(TREE)
    texts = answers(bench, TREE, range(10))
    for text in texts:
        validator.validate(json.loads(text))
    assert len({len(text) for text in texts}) > 1


def test_it_was_two_hundred_and_few_were_cut(bench: GrammarBench) -> None:
    if len(bench.last) < 200:
        pytest.skip("the tests above ran only in part")
    assert {last.finish_reason for last in bench.last.values()} <= {FinishReason.STOP, FinishReason.LENGTH}
    cut = sum(last.finish_reason is FinishReason.LENGTH for last in bench.last.values())
    assert cut * 20 < len(bench.last)
