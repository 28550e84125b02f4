"""A JSON answer."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

_encode = msgspec.json.Encoder().encode


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``value``, a Struct or what JSON has words for, as the body of a whole answer."""
    return Response(_encode(value), status, headers, "application/json")
