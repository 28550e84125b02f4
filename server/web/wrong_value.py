"""From msgspec's words about a value of the wrong form to an error that names the field and what may stand there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import inspect

from ...sessions.errors import RequestError
from ...sessions.malformed_json import join
from ..settings import suggest

_SAID = re.compile(r"^(?P<message>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"(?P<item>\[(?:\d+|\.\.\.)\])|\.?(?P<name>[^.\[]+)")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`")
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<field>[^`]*)`")
_SHOWN = 200  # characters of what a client sent
_NONE_OF = re.compile(r"Invalid (?:enum )?value ")


def wrong_value(kind: Any, said: str, within: str = "") -> RequestError:
    """The error for what msgspec ``said`` of a value that should be a ``kind``.

    ``within``: the field in which the value stands; empty for a whole body.
    """
    match = _SAID.match(said)
    message, path = (match["message"], match["path"] or "") if match else (said, "")
    place = join(within, path)
    if found := _UNKNOWN_FIELD.search(message):
        name = found["field"][:_SHOWN]
        field = join(place, name)
        known = [inner.encode_name for struct in _structs_at(kind, path) for inner in struct.fields]
        return RequestError(f"unknown field {field}", field=field, remedy=suggest(name, known))
    if found := _MISSING_FIELD.search(message):
        field = join(place, found["field"])
        return RequestError(f"missing field {field}", field=field)
    remedy = _one_of(_values_at(kind, path)) if _NONE_OF.match(message) else None
    message = message if len(message) <= _SHOWN else message[:_SHOWN] + "…"
    where = f"{place}: " if place else "the body: "
    if match and match["key"]:
        where += "a name in it: "
    return RequestError(where + message[0].lower() + message[1:], field=place or None, remedy=remedy)


def _one_of(values: Sequence[object]) -> str | None:
    return "it may be " + " or ".join(json.dumps(value) for value in values) if values else None


def _values_at(kind: Any, path: str) -> list[object]:
    """The texts and numbers that may stand at ``path``; empty if these are not a few."""
    found: list[object] = []
    for there in _types_at(kind, path):
        if isinstance(there, inspect.LiteralType):
            found += there.values
        elif isinstance(there, inspect.EnumType):
            found += [member.value for member in there.cls]
    outer, _, last = path.rpartition(".")
    return found or [struct.tag for struct in _structs_at(kind, outer) if struct.tag_field == last]


def _structs_at(kind: Any, path: str) -> list[inspect.StructType]:
    return [there for there in _types_at(kind, path) if isinstance(there, inspect.StructType)]


def _types_at(kind: Any, path: str) -> list[inspect.Type]:
    """What may stand at a path that begins with a ``kind``."""
    types = list(_members(inspect.type_info(kind)))
    for step in _STEP.finditer(path):
        types = [member for there in types for inner in _inner(there, step["name"]) for member in _members(inner)]
    return types


def _inner(there: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    """What may stand in one of ``there``: in its field ``name``, or as one of its items."""
    match there:
        case inspect.StructType(fields=fields) if name is not None:
            yield from (field.type for field in fields if field.encode_name == name)
        case inspect.DictType(value_type=inner) if name is None:
            yield inner
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner) if name is None:
            yield inner
        case _:
            return


def _members(there: inspect.Type) -> Iterator[inspect.Type]:
    """The parts of a union, without what is annotated to them."""
    match there:
        case inspect.Metadata(type=inner):
            yield from _members(inner)
        case inspect.UnionType(types=parts):
            for part in parts:
                yield from _members(part)
        case _:
            yield there
