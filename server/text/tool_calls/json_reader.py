"""JSON read strictly from a feed, a character at a time: an error is known at the first wrong character."""

from __future__ import annotations

import json
import re

from .feed import Feed, Reading

WHITESPACE = " \t\r\n"
MAX_DEPTH = 64
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SCALAR_CHARACTERS = frozenset("+-.0123456789abcdefghijklmnopqrstuvwxyzE")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


class CallError(Exception):
    """What was read cannot become a call; the message says why."""


def ended_inside() -> CallError:
    return CallError("the answer ended inside the call")


def expect(feed: Feed, characters: str) -> Reading[str]:
    """Consume one of ``characters``. Raises CallError for another."""
    character = yield from feed.peek()
    if not character:
        raise ended_inside()
    if character not in characters:
        raise CallError(f"{character!r} where {' or '.join(characters)} should be")
    return feed.consume(1)


def read_value(feed: Feed, depth: int = 0) -> Reading[None]:
    """Consume one value. Raises CallError where it is no JSON."""
    if depth > MAX_DEPTH:
        raise CallError(f"values are nested more than {MAX_DEPTH} deep")
    match (yield from feed.peek()):
        case "{":
            yield from _read_object(feed, depth)
        case "[":
            yield from _read_array(feed, depth)
        case '"':
            yield from read_string(feed)
        case "":
            raise ended_inside()
        case _:
            yield from _read_scalar(feed)


def read_string(feed: Feed) -> Reading[str]:
    """Consume one string; returns the text that it stands for."""
    tap = feed.tap()
    try:
        yield from expect(feed, '"')
        while True:
            plain = _PLAIN.match(feed.rest)
            feed.consume(plain.end() if plain else 0)
            match (yield from feed.peek()):
                case "":
                    raise ended_inside()
                case '"':
                    feed.consume(1)
                    break
                case "\\":
                    feed.consume(1)
                    yield from _read_escape(feed)
                case character if character < " ":
                    raise CallError(f"a control character {character!r} in a string")
                case _:
                    continue  # more plain text came
    finally:
        raw = feed.close_tap(tap)
    decoded: str = json.loads(raw)
    return decoded


def _read_escape(feed: Feed) -> Reading[None]:
    if (yield from expect(feed, '"\\/bfnrtu')) == "u":
        for _ in range(4):
            character = yield from feed.peek()
            if not character:
                raise ended_inside()
            if character not in _HEXADECIMAL:
                raise CallError(f"{character!r} in an escape of a character")
            feed.consume(1)


def _read_scalar(feed: Feed) -> Reading[None]:
    read = ""
    while (character := (yield from feed.peek())) and character in _SCALAR_CHARACTERS:
        read += feed.consume(1)
    if not _SCALAR.fullmatch(read):
        raise CallError(f"{read or character!r} is not a JSON value")


def _read_array(feed: Feed, depth: int) -> Reading[None]:
    yield from expect(feed, "[")
    yield from feed.skip(WHITESPACE)
    if (yield from feed.peek()) == "]":
        feed.consume(1)
        return
    while True:
        yield from read_value(feed, depth + 1)
        yield from feed.skip(WHITESPACE)
        if (yield from expect(feed, ",]")) == "]":
            return
        yield from feed.skip(WHITESPACE)


def _read_object(feed: Feed, depth: int) -> Reading[None]:
    yield from expect(feed, "{")
    yield from feed.skip(WHITESPACE)
    if (yield from feed.peek()) == "}":
        feed.consume(1)
        return
    while True:
        yield from read_string(feed)
        yield from read_colon(feed)
        yield from read_value(feed, depth + 1)
        yield from feed.skip(WHITESPACE)
        if (yield from expect(feed, ",}")) == "}":
            return
        yield from feed.skip(WHITESPACE)


def read_colon(feed: Feed) -> Reading[None]:
    """Consume the colon behind a key, and the white space on both its sides."""
    yield from feed.skip(WHITESPACE)
    yield from expect(feed, ":")
    yield from feed.skip(WHITESPACE)
