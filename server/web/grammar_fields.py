"""What the answer must look like, as OpenAI's and vLLM's clients say it: several fields, one meaning.

``response_format`` is OpenAI's, ``guided_*`` and ``structured_outputs`` are vLLM's older and newer ones.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from ...sessions.errors import RequestError
from ..engine.grammar import Grammar, GrammarKind
from ..text.schema_parts import OF_LIST, OF_MAP, OF_ONE

NoEffect = Annotated[Any, Meta(description="Accepted; no effect here.", extra={"effect": "none"})]
Schema = Annotated[dict[str, Any] | str, Meta(description="A JSON schema, or one as text.")]


class JsonSchemaFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenAI's wrapping of a schema. The answer matches it in any case, strict or not."""

    name: str | None = None
    schema_: Schema = msgspec.field(name="schema", default_factory=dict)
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``text``: anything; ``json_object``: any JSON object; ``json_schema``: JSON that matches the schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's. One of ``json``, ``json_object``, ``regex``, ``choice``, ``grammar``; the rest is about JSON's style."""

    json: Schema | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = False
    disable_additional_properties: bool | None = False
    disable_fallback: bool | None = None  # there is one implementation
    structural_tag: Annotated[Any, Meta(description="Only null.")] = None


class GrammarFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of a body that say what the answer must look like; at most one of them."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_json_object: bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: Annotated[str | None, Meta(description="A grammar in Lark or GBNF.")] = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: NoEffect = UNSET


class WantedGrammar(msgspec.Struct, frozen=True):
    """A grammar, and the field of the body that asks for it."""

    field: str
    grammar: Grammar


class _JsonStyle(msgspec.Struct, frozen=True):
    """How JSON is written."""

    whitespace_pattern: str | None = None
    compact: bool = False
    closed: bool = False  # objects have no properties but those named


def wanted_grammar(body: GrammarFields) -> WantedGrammar | None:
    """The grammar that a body asks for; None: the answer is any text.

    Raises:
        RequestError: it asks for several, or for one that cannot be read.
    """
    style = _JsonStyle(body.guided_whitespace_pattern)
    wanted = [*_of_response_format(body.response_format, style), *_of_guided(body, style)]
    _require_json(wanted, {"guided_whitespace_pattern": style.whitespace_pattern})
    wanted += _of_structured(body.structured_outputs)
    if len(wanted) > 1:
        first, second = wanted[0].field, wanted[1].field
        raise RequestError(f"{first} and {second} both say what the answer is", field=second, remedy="send one of them")
    return wanted[0] if wanted else None


def _of_response_format(wanted: ResponseFormat | None, style: _JsonStyle) -> list[WantedGrammar]:
    if wanted is None:
        return []
    if wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise RequestError(
                "response_format has no json_schema", field="response_format.json_schema", remedy='send {"schema": {…}}'
            )
        return [_json_schema("response_format.json_schema.schema", wanted.json_schema.schema_, style)]
    if wanted.json_schema is not None:
        raise RequestError(
            f"response_format has a json_schema, and its type is {wanted.type}",
            field="response_format.json_schema",
            remedy='send type "json_schema", or leave the schema out',
        )
    if wanted.type == "text":
        return []
    if style.whitespace_pattern is not None:
        return [_json_schema("response_format", {"type": "object"}, style)]
    return [WantedGrammar("response_format", Grammar(GrammarKind.JSON_OBJECT))]


def _require_json(wanted: list[WantedGrammar], of_json: dict[str, object]) -> None:
    """Raise RequestError for the first of ``of_json`` that is set, unless the answer is JSON."""
    if any(one.grammar.kind in (GrammarKind.JSON_SCHEMA, GrammarKind.JSON_OBJECT) for one in wanted):
        return
    for field, value in of_json.items():
        if value not in (None, False):
            raise RequestError(
                f"{field} is about JSON, and the answer is not to be JSON", field=field, remedy="ask for JSON too"
            )


def _of_guided(body: GrammarFields, style: _JsonStyle) -> list[WantedGrammar]:
    forms = StructuredOutputs(
        json=body.guided_json,
        json_object=body.guided_json_object,
        regex=body.guided_regex,
        choice=body.guided_choice,
        grammar=body.guided_grammar,
    )
    return _of_forms(forms, "guided_", style)


def _of_structured(wanted: StructuredOutputs | None) -> list[WantedGrammar]:
    if wanted is None:
        return []
    if wanted.structural_tag is not None:
        field = "structured_outputs.structural_tag"
        raise RequestError("structural tags are not supported", field=field, remedy="send tools, or a grammar in Lark")
    style = _JsonStyle(
        wanted.whitespace_pattern, bool(wanted.disable_any_whitespace), bool(wanted.disable_additional_properties)
    )
    found = _of_forms(wanted, "structured_outputs.", style)
    names = ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")
    _require_json(found, {f"structured_outputs.{name}": getattr(wanted, name) for name in names})
    return found


def _of_forms(forms: StructuredOutputs, prefix: str, style: _JsonStyle) -> list[WantedGrammar]:
    wanted = []
    if forms.json is not None:
        wanted.append(_json_schema(f"{prefix}json", forms.json, style))
    if forms.json_object:
        wanted.append(_json_schema(f"{prefix}json_object", {"type": "object"}, style))
    if forms.regex is not None:
        wanted.append(WantedGrammar(f"{prefix}regex", Grammar(GrammarKind.REGEX, forms.regex)))
    if forms.choice is not None:
        text = msgspec.json.encode(forms.choice).decode()
        wanted.append(WantedGrammar(f"{prefix}choice", Grammar(GrammarKind.CHOICE, text)))
    if forms.grammar is not None:
        kind = GrammarKind.GBNF if "::=" in forms.grammar else GrammarKind.LARK
        wanted.append(WantedGrammar(f"{prefix}grammar", Grammar(kind, forms.grammar)))
    return wanted


def _json_schema(field: str, schema: dict[str, Any] | str, style: _JsonStyle) -> WantedGrammar:
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"{field} is not a JSON object: {error}", field=field) from error
    made: dict[str, Any] = _closed(schema) if style.closed else schema
    guidance: dict[str, Any] = {}
    if style.whitespace_pattern is not None:
        guidance["whitespace_pattern"] = style.whitespace_pattern
    if style.compact:
        guidance["whitespace_flexible"] = False
    if guidance:
        own = made.get("x-guidance")
        made = {**made, "x-guidance": {**(own if isinstance(own, dict) else {}), **guidance}}
    return WantedGrammar(field, Grammar(GrammarKind.JSON_SCHEMA, msgspec.json.encode(made).decode()))


def _closed(schema: Any) -> Any:
    """The schema with ``additionalProperties`` false in each object that does not say otherwise."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key, inner in schema.items():
        if key in OF_ONE:
            made[key] = _closed(inner)
        elif key in OF_LIST and isinstance(inner, list):
            made[key] = [_closed(one) for one in inner]
        elif key in OF_MAP and isinstance(inner, dict):
            made[key] = {name: _closed(one) for name, one in inner.items()}
    if isinstance(schema.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    return made
