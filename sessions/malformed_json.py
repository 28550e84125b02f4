"""Why bytes that clients send are no JSON, for people."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from .errors import RequestError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FIELD_NAME = re.compile(rb'"([A-Za-z0-9_]{1,64})"\s*:')
_SHOWN = 200  # characters of a name
_PLAIN = (int, float, type(None))  # there is nothing in these
_HALF = re.compile("[\ud800-\udfff]")


def malformed(sent: bytes, message: str, what: str = "the body") -> RequestError:
    """The error for what was ``sent``, of which the decoder says ``message``: it is empty or not UTF-8, it has a number
    that is not finite or half of a surrogate pair, or else where it breaks. ``what`` it is called."""
    if not sent.strip():
        return RequestError(f"{what} is empty", remedy="send a JSON object")
    if sent.startswith(BYTE_ORDER_MARK):
        return RequestError(f"{what} begins with a byte order mark", remedy="send UTF-8 without one")
    try:
        text = sent.decode()
    except UnicodeDecodeError as error:
        return RequestError(
            f"{what} is not valid UTF-8 at byte {error.start}",
            field=_field_before(sent[: error.start]),
            remedy="encode the text as UTF-8",
        )
    try:
        found = next(_faults(json.loads(text, parse_constant=_Constant), what), None)
    except (ValueError, RecursionError):
        found = None
    return found or RequestError(f"{what} is not valid JSON: {message}")


def join(path: str, field: str) -> str:
    """The path of ``field`` in what ``path`` names; either may be empty."""
    return f"{path}.{field}" if path and field and field[0] != "[" else path + field


class _Constant(str):
    """``NaN``, ``Infinity`` or ``-Infinity``, which are not JSON."""

    __slots__ = ()


class _Place(NamedTuple):
    """A name or an index within another place. Written down as a path only where it is told: names may be long, and
    there may be many items in them."""

    within: _Place | None
    step: str | int


def _path(place: _Place | None) -> str:
    steps: list[str] = []
    while place is not None:
        steps.append(f"[{place.step}]" if isinstance(place.step, int) else place.step[:_SHOWN])
        place = place.within
    return functools.reduce(join, reversed(steps), "")


def _faults(value: Any, what: str) -> Iterator[RequestError]:
    """What the standard library reads and JSON has no word for, with its field."""
    stack: list[tuple[_Place | None, Any]] = [(None, value)]
    while stack:
        place, inner = stack.pop()
        if isinstance(inner, _Constant):
            path = _path(place)
            yield RequestError(f"{path or what} is {inner}", field=path or None, remedy="send a finite number")
        elif isinstance(inner, str) and _HALF.search(inner):
            yield _half_of_a_pair(_path(place), what)
        elif isinstance(inner, dict):
            if any(_HALF.search(key) for key in inner):
                yield _half_of_a_pair(_path(place), what)
            stack.extend((_Place(place, key), item) for key, item in inner.items() if not isinstance(item, _PLAIN))
        elif isinstance(inner, list):
            stack.extend(
                (_Place(place, index), item) for index, item in enumerate(inner) if not isinstance(item, _PLAIN)
            )


def _half_of_a_pair(path: str, what: str) -> RequestError:
    return RequestError(
        f"{path or what} has half of a surrogate pair (\\ud800 to \\udfff)",
        field=path or None,
        remedy="send valid Unicode",
    )


def _field_before(prefix: bytes) -> str | None:
    """The last name of a field before a damaged byte."""
    names = _FIELD_NAME.findall(prefix[-65536:])
    return names[-1].decode() if names else None
