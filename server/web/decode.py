"""From the bytes of a request to a Struct, with an error that names the field.

The fast path is msgspec alone. Only when that fails is the body read a second time, by the standard library, to find
which field holds what JSON has no word for.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ...sessions.errors import RequestError
from ..settings import suggest
from .errors import BodyTooLarge

_PATH = re.compile(r"^(?P<message>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`")
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<field>[^`]*)`")
Body = TypeVar("Body", bound=msgspec.Struct)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, of ``limit`` bytes at most. Raises BodyTooLarge as soon as it is known to be longer."""
    return b"".join([piece async for piece in body_pieces(request, limit, BodyTooLarge(limit))])


async def body_pieces(request: Request, limit: int, too_large: BodyTooLarge) -> AsyncGenerator[bytes, None]:
    """The body as it comes, of ``limit`` bytes at most. To be closed by who does not read it to its end.

    Raises:
        BodyTooLarge: ``too_large``, as soon as it is known to be longer.
        RequestError: the client went away.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    size = 0
    try:
        async with aclosing(request.stream()) as pieces:
            async for piece in pieces:
                size += len(piece)
                if size > limit:
                    raise too_large
                yield piece
    except ClientDisconnect as error:
        raise RequestError("the client went away before its request was complete") from error


class BodyDecoder:
    """Decodes one kind of body."""

    def __init__(self, kind: type[Body]) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._known = [field.encode_name for field in msgspec.structs.fields(kind)]

    def decode(self, body: bytes) -> Any:
        """A Struct of the decoder's kind. Raises RequestError naming the field."""
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise self._invalid(str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _malformed(body, str(error)) from error
        except RecursionError as error:
            raise RequestError("the JSON is nested too deeply", remedy="flatten it") from error

    def _invalid(self, text: str) -> RequestError:
        match = _PATH.match(text)
        message, path = (match["message"], match["path"] or "") if match else (text, "")
        for pattern, what in ((_UNKNOWN_FIELD, "unknown field"), (_MISSING_FIELD, "missing field")):
            if found := pattern.search(message):
                field = _join(path, found["field"])
                known = self._known if what == "unknown field" and not path else []
                return RequestError(f"{what} {field}", field=field, remedy=suggest(found["field"], known))
        where = f"{path}: " if path else "the body: "
        return RequestError(where + message[0].lower() + message[1:], field=path or None)


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def _malformed(body: bytes, message: str) -> RequestError:
    """Why ``body`` is no JSON, for people: empty, not UTF-8, not a finite number, or else where it breaks."""
    if not body.strip():
        return RequestError("the body is empty", remedy="send a JSON object")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        return RequestError(
            f"the body is not valid UTF-8 at byte {error.start}",
            field=_field_before(body[: error.start]),
            remedy="encode the text as UTF-8",
        )
    try:
        path = _path_of_constant(json.loads(text, parse_constant=_Constant))
    except (ValueError, RecursionError):
        path = None
    if path is not None:
        field, constant = path
        return RequestError(f"{field} is {constant}", field=field, remedy="send a finite number")
    if "\\ud" in text.lower():
        return RequestError("the body has half of a surrogate pair (\\ud800 to \\udfff)", remedy="send valid Unicode")
    return RequestError(f"the body is not valid JSON: {message}")


class _Constant(str):
    """``NaN``, ``Infinity`` or ``-Infinity``, which are not JSON."""

    __slots__ = ()


def _path_of_constant(value: object) -> tuple[str, str] | None:
    stack: list[tuple[str, object]] = [("", value)]
    while stack:
        path, inner = stack.pop()
        if isinstance(inner, _Constant):
            return path or "the body", str(inner)
        if isinstance(inner, dict):
            stack.extend((_join(path, str(key)), item) for key, item in inner.items())
        elif isinstance(inner, list):
            stack.extend((f"{path}[{index}]", item) for index, item in enumerate(inner))
    return None


_FIELD_NAME = re.compile(rb'"([A-Za-z0-9_]{1,64})"\s*:')


def _field_before(prefix: bytes) -> str | None:
    """The last name of a field before a damaged byte."""
    names = _FIELD_NAME.findall(prefix[-65536:])
    return names[-1].decode() if names else None
