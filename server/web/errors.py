"""Errors over HTTP, in OpenAI's shape: ``{"error": {"message", "type", "param", "code", "details"}}``."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ...sessions.batches.errors import BatchIsOver, FileInUse, StorageFull, UnknownBatch, UnknownFile
from ...sessions.errors import CapacityError, RequestError, SessileError
from ..error_status import error_metadata, retry_after_s, status_of
from .no_such_route import no_such_route

logger = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class BodyTooLarge(RequestError):
    """The request's body is longer than ``limit`` bytes."""

    def __init__(self, limit: int, remedy: str = "send less, or raise --http-max-body-bytes") -> None:
        super().__init__(f"the body is longer than {limit} bytes", remedy=remedy)
        self.limit = limit


class EncodedBody(RequestError):
    """The request's body is compressed."""

    def __init__(self, encoding: str) -> None:
        super().__init__(
            f"the body's content-encoding is {encoding[:40]!r}",
            field="content-encoding",
            remedy="send it as it is, without one",
        )


class TooManyConnections(CapacityError):
    """There are as many connections as there may be."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"{limit} connections are open already",
            remedy="use a connection for more than one request, close idle ones, or raise --http-max-connections",
            retry_after_s=1.0,
        )


class UnknownModel(RequestError):
    """Another model than the served one was asked for."""

    def __init__(self, asked: str, served: str, aliases: Iterable[str] = ()) -> None:
        known = ", ".join(repr(name) for name in (served, *sorted(aliases)))
        remedy = f"ask for {known}, or start the server with --model-aliases and the name"
        super().__init__(f"model {asked!r} is not served here", field="model", remedy=remedy)


class UnknownResponse(RequestError):
    """There is no such response of this tenant, or its time is over."""

    def __init__(self, response_id: str, field: str) -> None:
        super().__init__(
            f"there is no response {response_id!r}",
            field=field,
            remedy="responses are kept with store true, and for --http-response-ttl-s seconds",
        )


def http_status_of(error: SessileError) -> tuple[int, str]:
    """The HTTP status and the stable code of an error."""
    match error:
        case BodyTooLarge():
            return 413, "body_too_large"
        case EncodedBody():
            return 415, "encoded_body"
        case TooManyConnections():
            return 503, "too_many_connections"
        case UnknownModel():
            return 404, "model_not_found"
        case UnknownResponse():
            return 404, "response_not_found"
        case UnknownFile():
            return 404, "file_not_found"
        case UnknownBatch():
            return 404, "batch_not_found"
        case StorageFull():
            return 413, "storage_full"
        case FileInUse():
            return 409, "file_in_use"
        case BatchIsOver():
            return 409, "batch_is_over"
        case _:
            row = status_of(error)
            return row.http_status, row.reason.lower()


def error_body(error: SessileError) -> dict[str, Any]:
    """The error as a JSON value."""
    status, code = http_status_of(error)
    return _shape(status, str(error), error.field, code, error_metadata(error))


def internal_error_body() -> dict[str, Any]:
    """A bug of ours as a JSON value."""
    return _shape(500, "internal error; the server's log has the details", None, "internal", {})


def error_response(error: SessileError) -> Response:
    """The error as an answer, with ``Retry-After`` where another try may succeed."""
    status, _ = http_status_of(error)
    retry = retry_after_s(error)
    headers = {} if retry is None else {"retry-after": str(max(1, math.ceil(retry)))}
    return Response(_encode(error_body(error)), status, headers, "application/json")


def _shape(status: int, message: str, param: str | None, code: str, details: dict[str, str]) -> dict[str, Any]:
    return {
        "error": {
            "message": message,
            "type": _type_of(status),
            "param": param,
            "code": code,
            "details": details,
        }
    }


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


async def answer_sessile_error(_request: Request, error: Exception) -> Response:
    """For errors of our own tree."""
    assert isinstance(error, SessileError)
    if http_status_of(error)[0] == 500:
        logger.error("request failed: %s", error, exc_info=error)
    return error_response(error)


async def answer_http_error(request: Request, error: Exception) -> Response:
    """For the router's own errors: no such path, no such method."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    told, headers = no_such_route(request, error)
    body = _shape(error.status_code, str(told), None, code, error_metadata(told))
    return Response(_encode(body), error.status_code, headers, "application/json")


async def answer_unexpected(_request: Request, _error: Exception) -> Response:
    """For a bug of ours: says so, without its inside. The server's log has the traceback."""
    return Response(_encode(internal_error_body()), 500, media_type="application/json")
