"""Errors in Anthropic's shape: ``{"type": "error", "error": {"type", "message"}, "request_id"}``."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from ....sessions.errors import SessileError
from ...error_status import error_metadata, retry_after_s
from ..errors import http_status_of
from .answers import MessageError, MessageErrorAnswer

PATH = "/v1/messages"
_OVERLOADED = 529  # Anthropic's own
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    _OVERLOADED: "overloaded_error",
}
_encode = msgspec.json.Encoder().encode


def new_request_id() -> str:
    """What ``request-id`` says of a request."""
    return f"req_{uuid.uuid4().hex}"


def error_body(error: SessileError, request_id: str) -> MessageErrorAnswer:
    """The error as a value."""
    status, code = _status_of(error)
    return _answer(status, str(error), error.field, code, error_metadata(error), request_id)


def error_response(error: SessileError) -> Response:
    """The error as an answer, with ``retry-after`` where another try may succeed."""
    status, _ = _status_of(error)
    request_id, retry = new_request_id(), retry_after_s(error)
    headers = {"request-id": request_id}
    if retry is not None:
        headers["retry-after"] = str(max(1, math.ceil(retry)))
    return Response(_encode(error_body(error, request_id)), status, headers, "application/json")


def is_addressed(path: str) -> bool:
    """Whether who sent a request to this path expects Anthropic's shapes."""
    return path == PATH or path.startswith(f"{PATH}/")


def plain_error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An answer for what is no error of ours: no such path, a fault of the server."""
    request_id = new_request_id()
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "http_error" if status < 500 else "internal")
    body = _answer(status, message, None, code, {}, request_id)
    return Response(_encode(body), status, {**(headers or {}), "request-id": request_id}, "application/json")


def _status_of(error: SessileError) -> tuple[int, str]:
    status, code = http_status_of(error)
    return (_OVERLOADED if status == 503 else status), code


def _answer(
    status: int, message: str, param: str | None, code: str, details: dict[str, str], request_id: str
) -> MessageErrorAnswer:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    error = MessageError(type=kind, message=message, param=param, code=code, details=details)
    return MessageErrorAnswer(error=error, request_id=request_id)
