"""Tokens of TypeScript and JavaScript."""

from __future__ import annotations

import enum
import re
from bisect import bisect_right
from dataclasses import dataclass


class TokenKind(enum.Enum):
    """What a token is."""

    NAME = "name"
    NUMBER = "number"
    STRING = "string"
    TEMPLATE = "template"
    REGEX = "regex"
    PUNCTUATION = "punctuation"
    END = "end"


@dataclass(slots=True)
class Token:
    """One token; `match` is the index of what closes an opening bracket (-1: it is none, or nothing does), and
    `after_newline` helps statement ends."""

    kind: TokenKind
    text: str
    start: int
    end: int
    line: int
    after_newline: bool = False
    match: int = -1


_TOKEN = re.compile(
    r"(?P<space>[ \t\r\f\v\u00a0\ufeff]+)|(?P<newline>\n)|(?P<line_comment>//[^\n]*)|(?P<block_comment>/\*.*?\*/)"
    r"|(?P<name>[A-Za-z_$#\u0080-\uffff][\w$\u0080-\uffff]*)"
    r"|(?P<number>0[xXbBoO][\da-fA-F_]+n?|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?n?)"
    r"|(?P<string>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
    r"|(?P<template>`)"
    r"|(?P<punctuation>>>>=|\.\.\.|===|!==|>>>|\*\*=|<<=|>>=|&&=|\|\|=|\?\?=|=>|==|!=|<=|>=|&&|\|\||\?\?|\?\.(?!\d)|\+\+|--|\+=|-=|\*=|/=|%=|&=|\|=|\^=|<<|>>|\*\*|[{}()\[\];,<>+\-*/%&|^!~?:=.@\\])",
    re.DOTALL,
)
_REGEX = re.compile(r"/(?![*/])(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[a-z]*")
_BEFORE_REGEX = {
    "return",
    "typeof",
    "case",
    "in",
    "of",
    "delete",
    "void",
    "throw",
    "new",
    "await",
    "else",
    "do",
    "yield",
}
_OPENING = {"(": ")", "[": "]", "{": "}"}


class Lexer:
    """Splits a source text; never fails: what it does not know is skipped."""

    def __init__(self, text: str, offset: int = 0, line_starts: list[int] | None = None) -> None:
        self._text = text
        self._offset = offset
        self._lines = line_starts or [0, *(m.end() for m in re.finditer("\n", text))]
        self.line_starts = self._lines

    def tokens(self, start: int = 0, end: int | None = None) -> list[Token]:
        """Tokens of a part of the text, with brackets matched, ended by an END token."""
        limit = len(self._text) if end is None else end
        found: list[Token] = []
        position, newline = start, False
        while position < limit:
            token, position, newline = self._next(position, limit, newline, found)
            if token:
                found.append(token)
                newline = False
        found.append(Token(TokenKind.END, "", limit, limit, self.line_of(limit), True))
        _match_brackets(found)
        return found

    def line_of(self, position: int) -> int:
        """Line number, from 1."""
        return bisect_right(self._lines, position)

    def _next(self, position: int, limit: int, newline: bool, found: list[Token]) -> tuple[Token | None, int, bool]:
        text = self._text
        if text[position] == "/" and _regex_may_start(found):
            regex = _REGEX.match(text, position, limit)
            if regex:
                return self._token(TokenKind.REGEX, position, regex.end(), newline), regex.end(), newline
        match = _TOKEN.match(text, position, limit)
        if not match:
            return None, position + 1, newline
        group = match.lastgroup or ""
        if group == "newline" or (group == "block_comment" and "\n" in match.group()):
            return None, match.end(), True
        if group in ("space", "line_comment", "block_comment"):
            return None, match.end(), newline
        end = _template_end(text, position, limit) if group == "template" else match.end()
        return self._token(TokenKind(group), position, end, newline), end, newline

    def _token(self, kind: TokenKind, start: int, end: int, newline: bool) -> Token:
        return Token(kind, self._text[start:end], start, end, self.line_of(start), newline)


def _regex_may_start(found: list[Token]) -> bool:
    if not found:
        return True
    last = found[-1]
    if last.kind is TokenKind.NAME:
        return last.text in _BEFORE_REGEX
    return last.kind is TokenKind.PUNCTUATION and last.text not in (")", "]", "}", "++", "--")


def _template_end(text: str, start: int, limit: int) -> int:
    """The end of a template literal, nested templates and braces counted."""
    position, depth = start + 1, 0
    while position < limit:
        char = text[position]
        if char == "\\":
            position += 2
            continue
        if depth == 0 and char == "`":
            return position + 1
        if depth == 0 and text.startswith("${", position):
            depth, position = 1, position + 2
            continue
        if depth:
            if char == "`":
                position = _template_end(text, position, limit)
                continue
            depth += (char == "{") - (char == "}")
        position += 1
    return limit


def template_parts(text: str, start: int, end: int) -> list[tuple[int, int, bool]]:
    """(start, end, is expression) of the pieces of the template literal at [start, end)."""
    parts: list[tuple[int, int, bool]] = []
    position = piece = start + 1
    while position < end - 1:
        if text[position] == "\\":
            position += 2
        elif text.startswith("${", position):
            parts.append((piece, position, False))
            close = _expression_end(text, position + 2, end)
            parts.append((position + 2, close, True))
            position = piece = close + 1
        else:
            position += 1
    parts.append((piece, max(piece, end - 1), False))
    return parts


def _expression_end(text: str, position: int, limit: int) -> int:
    depth = 1
    while position < limit:
        char = text[position]
        if char == "`":
            position = _template_end(text, position, limit)
            continue
        if char in "\"'":
            close = re.compile(r"(?:[^\\\n]|\\.)*?" + char).match(text, position + 1, limit)
            position = close.end() if close else position + 1
            continue
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return position
        position += 1
    return limit


def _match_brackets(tokens: list[Token]) -> None:
    stack: list[int] = []
    for i, token in enumerate(tokens):
        if token.kind is not TokenKind.PUNCTUATION:
            continue
        if token.text in _OPENING:
            stack.append(i)
        elif token.text in (")", "]", "}"):
            while stack and _OPENING[tokens[stack[-1]].text] != token.text:
                stack.pop()
            if stack:
                tokens[stack.pop()].match = i
