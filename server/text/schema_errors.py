"""Where in a schema something is that the grammar compiler refuses: the keyword and its JSON pointer.

The compiler says what it refuses and not where. So the schema's parts are compiled alone, the deepest first, until one
is refused with the same words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from .schema_parts import OF_LIST, OF_MAP, OF_ONE

_MOST_PARTS = 100
_NAMED_KEYS = re.compile(r"Unimplemented keys: \[\"([^\"]*)\"")
_SIGNS = (  # what a message starts with, and the keyword that it is about
    ("Invalid type", "type"),
    ("type must be", "type"),
    ("Unknown format", "format"),
    ("regex parse error", "pattern"),
    ("Pointer ", "$ref"),
    ("Resource ", "$ref"),
    ("$ref ", "$ref"),
    ("circular references", "$ref"),
    ("oneOf", "oneOf"),
    ("enum", "enum"),
    ("allOf", "allOf"),
    ("anyOf", "anyOf"),
    ("No options in anyOf", "anyOf"),
    ("All options in anyOf", "anyOf"),
    ("min/maxProperties", "minProperties"),
    ("minProperties", "minProperties"),
    ("required", "required"),
    ("prefixItems", "prefixItems"),
    ("properties must", "properties"),
    ("Value for 'multipleOf'", "multipleOf"),
)


def explain(schema_text: str, message: str, refused: Callable[[str], str]) -> str:
    """``message``, with the keyword and the pointer of what it is about.

    ``refused`` compiles a schema's text and says why it is refused, as ``message`` does; empty if it is not.
    """
    try:
        root = json.loads(schema_text)
    except (ValueError, RecursionError):
        return message
    pointer, part = _find(root, message, refused)
    keyword = _keyword(part, message)
    if keyword is None:
        return f"at {pointer}: {first_line(message)}"
    verb = "is not supported" if _NAMED_KEYS.match(message) else f"cannot be used: {first_line(message)}"
    if keyword == "oneOf":
        verb = "is supported only where its options plainly exclude each other; use anyOf"
    return f"the keyword {keyword!r} at {pointer.rstrip('/')}/{_escaped(keyword)} {verb}"


def _find(root: Any, message: str, refused: Callable[[str], str]) -> tuple[str, Any]:
    definitions = {key: root[key] for key in ("$defs", "definitions") if isinstance(root, dict) and key in root}
    for count, (pointer, part) in enumerate(_parts(root, "#")):
        if count >= _MOST_PARTS:
            break
        if isinstance(part, dict) and part is not root and refused(json.dumps({**definitions, **part})) == message:
            return pointer, part
    return "#", root


def _parts(schema: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    """Subschemas and their pointers, each after those within it."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            here = f"{pointer}/{_escaped(key)}"
            if key in OF_MAP and isinstance(value, dict):
                for name, inner in value.items():
                    yield from _parts(inner, f"{here}/{_escaped(name)}")
            elif key in OF_LIST and isinstance(value, list):
                for index, inner in enumerate(value):
                    yield from _parts(inner, f"{here}/{index}")
            elif key in OF_ONE:
                yield from _parts(value, here)
        yield pointer, schema


def _escaped(key: str) -> str:
    """RFC 6901."""
    return key.replace("~", "~0").replace("/", "~1")


def _keyword(part: Any, message: str) -> str | None:
    if not isinstance(part, dict):
        return None
    named = _NAMED_KEYS.match(message)
    if named:
        return named[1]
    return next((keyword for sign, keyword in _SIGNS if message.startswith(sign) and keyword in part), None)


def first_line(message: str) -> str:
    """Of the compiler's words the ones that say what is wrong; of a regex's error these are in the last line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    last = next((line for line in lines if line.startswith("error: ")), None)
    return last.removeprefix("error: ") if last else (lines or [message])[0]


def readable(message: str) -> str:
    """The compiler's words without what they say of its own inside."""
    message = message.replace("<non-verbose/>", "").partition("\n  while processing")[0].strip()
    return "no text satisfies it" if message.startswith("NoExtension") else message
