"""What a turn's answer must look like: a grammar in one of the forms that clients send."""

from __future__ import annotations

import enum

import msgspec


class GrammarKind(enum.StrEnum):
    """How ``Grammar.text`` is to be read."""

    JSON_OBJECT = "json_object"  # any JSON object; there is no text
    JSON_SCHEMA = "json_schema"  # a JSON schema; the order of its properties is that of the answer
    REGEX = "regex"  # Rust's syntax, for the whole answer
    CHOICE = "choice"  # a JSON array of strings: one of them
    LARK = "lark"  # llguidance's Lark; <|name|> stands for a special token
    GBNF = "gbnf"  # llama.cpp's EBNF, as vLLM's ``guided_grammar`` takes it


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole answer matches ``text``; its end-of-turn token comes where the grammar allows an end."""

    kind: GrammarKind
    text: str = ""
