"""Why bytes that clients send are no JSON, for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .errors import RequestError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FIELD_NAME = re.compile(rb'"([A-Za-z0-9_]{1,64})"\s*:')
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


def _faults(value: Any, what: str) -> Iterator[RequestError]:
    """What the standard library reads and JSON has no word for, with its field."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, inner = stack.pop()
        if isinstance(inner, _Constant):
            yield RequestError(f"{path or what} is {inner}", field=path or None, remedy="send a finite number")
        elif isinstance(inner, str) and _HALF.search(inner):
            yield _half_of_a_pair(path, what)
        elif isinstance(inner, dict):
            if any(_HALF.search(key) for key in inner):
                yield _half_of_a_pair(path, what)
            stack.extend((join(path, key), item) for key, item in inner.items())
        elif isinstance(inner, list):
            stack.extend((f"{path}[{index}]", item) for index, item in enumerate(inner))


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
