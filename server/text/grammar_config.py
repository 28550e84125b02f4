"""How large a client's grammar may be, and what compiling it may cost."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..engine.grammar import Grammar, GrammarKind

# Where JSON allows whitespace, so much of it (a regular expression): small models otherwise get lost in it.
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,40}"


class GrammarConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of what clients may ask answers to look like."""

    max_bytes: Annotated[int, Meta(ge=1, description="size of a schema, a regex or a grammar, at most")] = 262_144
    max_depth: Annotated[int, Meta(ge=1, description="JSON nesting of a schema, at most")] = 64
    compile_seconds: Annotated[
        int, Meta(ge=1, description="CPU seconds that compiling one may take; beyond, the request is refused")
    ] = 3


def oversize(grammar: Grammar, config: GrammarConfig) -> str | None:
    """What is too large about ``grammar`` before anything reads it; None: nothing."""
    size = len(grammar.text.encode("utf-8", "surrogatepass"))
    if size > config.max_bytes:
        return f"it has {size} bytes, {config.max_bytes} are allowed (--grammar-max-bytes)"
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        depth = _json_depth(grammar.text)
        if depth > config.max_depth:
            return f"it is nested {depth} deep, {config.max_depth} are allowed (--grammar-max-depth)"
    return None


def _json_depth(text: str) -> int:
    """The most brackets that are open at once, strings left out; any text has one."""
    deepest = depth = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest
