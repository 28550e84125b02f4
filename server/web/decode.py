"""From the bytes of a request to a Struct, with an error that names the field.

The fast path is msgspec alone. Only when that fails is the body read a second time, by the standard library, to find
which field holds what JSON has no word for.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ...sessions.errors import RequestError
from ...sessions.malformed_json import malformed
from .errors import BodyTooLarge, EncodedBody
from .wrong_value import wrong_value

Body = TypeVar("Body", bound=msgspec.Struct)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, of ``limit`` bytes at most. Raises BodyTooLarge as soon as it is known to be longer."""
    return b"".join([piece async for piece in body_pieces(request, limit, BodyTooLarge(limit))])


async def body_pieces(request: Request, limit: int, too_large: BodyTooLarge) -> AsyncGenerator[bytes, None]:
    """The body as it comes, of ``limit`` bytes at most. To be closed by who does not read it to its end.

    Raises:
        EncodedBody: it is compressed.
        BodyTooLarge: ``too_large``, as soon as it is known to be longer.
        RequestError: the client went away.
    """
    require_plain(request)
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


def require_plain(request: Request) -> None:
    """Raise EncodedBody for a request whose body is compressed."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise EncodedBody(encoding)


class BodyDecoder:
    """Decodes one kind of body. ``foreign``: knows bodies that are not of this kind for a reason of their own."""

    def __init__(self, kind: type[Body], foreign: Callable[[bytes], RequestError | None] | None = None) -> None:
        self._kind = kind
        self._foreign = foreign
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, body: bytes) -> Any:
        """A Struct of the decoder's kind. Raises RequestError naming the field."""
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            known = None if self._foreign is None else self._foreign(body)
            raise known or wrong_value(self._kind, str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise malformed(body, str(error)) from error
        except RecursionError as error:
            raise RequestError("the JSON is nested too deeply", remedy="flatten it") from error
