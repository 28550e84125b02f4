"""How Sessile's errors travel: the one table from ``sessions/errors.py`` to gRPC and HTTP, and the way back.

The servicers, the HTTP routes and the client all read this table, so that an error keeps its type, its field and its
remedy from the place that raised it to the caller's ``except``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from ..sessions.errors import (
    CapacityError,
    ConfigError,
    ContextOverflow,
    DeadlineExceeded,
    Draining,
    EngineError,
    ModelChanged,
    ModelError,
    PermissionDenied,
    RequestError,
    SessileError,
    SessionBusy,
    SessionError,
    SessionNotFound,
    StaleVersion,
    StoreError,
    StoreUnavailable,
    Unauthenticated,
)

DOMAIN = "sessile"  # of google.rpc.ErrorInfo
DEFAULT_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """One row: ``reason`` is the stable machine-readable name (google.rpc.ErrorInfo, ``error.code`` over HTTP)."""

    error: type[SessileError]
    reason: str
    grpc_code: grpc.StatusCode
    http_status: int
    transient: bool = False  # the same request may succeed later: RetryInfo, Retry-After


_Code = grpc.StatusCode
ERROR_TABLE: tuple[ErrorStatus, ...] = (
    ErrorStatus(ContextOverflow, "CONTEXT_OVERFLOW", _Code.OUT_OF_RANGE, 400),
    ErrorStatus(RequestError, "INVALID_REQUEST", _Code.INVALID_ARGUMENT, 400),
    ErrorStatus(SessionNotFound, "SESSION_NOT_FOUND", _Code.NOT_FOUND, 404),
    ErrorStatus(SessionBusy, "SESSION_BUSY", _Code.FAILED_PRECONDITION, 409),
    ErrorStatus(StaleVersion, "STALE_VERSION", _Code.ABORTED, 409),
    ErrorStatus(ModelChanged, "MODEL_CHANGED", _Code.FAILED_PRECONDITION, 409),
    ErrorStatus(SessionError, "SESSION_ERROR", _Code.FAILED_PRECONDITION, 409),
    ErrorStatus(CapacityError, "CAPACITY", _Code.RESOURCE_EXHAUSTED, 429, transient=True),
    ErrorStatus(DeadlineExceeded, "DEADLINE_EXCEEDED", _Code.DEADLINE_EXCEEDED, 504),
    ErrorStatus(Draining, "DRAINING", _Code.UNAVAILABLE, 503, transient=True),
    ErrorStatus(EngineError, "ENGINE_UNAVAILABLE", _Code.UNAVAILABLE, 503, transient=True),
    ErrorStatus(Unauthenticated, "UNAUTHENTICATED", _Code.UNAUTHENTICATED, 401),
    ErrorStatus(PermissionDenied, "PERMISSION_DENIED", _Code.PERMISSION_DENIED, 403),
    ErrorStatus(StoreUnavailable, "STORE_UNAVAILABLE", _Code.UNAVAILABLE, 503, transient=True),
    ErrorStatus(StoreError, "STORE_ERROR", _Code.INTERNAL, 500),
    ErrorStatus(ModelError, "MODEL_ERROR", _Code.INTERNAL, 500),
    ErrorStatus(ConfigError, "CONFIG_ERROR", _Code.INTERNAL, 500),
    ErrorStatus(SessileError, "INTERNAL", _Code.INTERNAL, 500),
)

CANCELLED = "CANCELLED"

_BY_ERROR: Mapping[type[BaseException], ErrorStatus] = {row.error: row for row in ERROR_TABLE}
_REASONS: Mapping[str, str] = {row.error.__name__: row.reason for row in ERROR_TABLE}
_BY_REASON: Mapping[str, ErrorStatus] = {row.reason: row for row in ERROR_TABLE}


def status_of(error: SessileError) -> ErrorStatus:
    """The row of the error's nearest class."""
    for error_class in type(error).__mro__:
        if error_class in _BY_ERROR:
            return _BY_ERROR[error_class]
    raise AssertionError("SessileError itself is in the table")


def reason_of(error_name: str) -> str:
    """The stable reason of an error by the name of its class; CANCELLED for what is no error of ours."""
    return _REASONS.get(error_name, CANCELLED)


def retry_after_s(error: SessileError) -> float | None:
    """Seconds after which the same request may succeed; None: never, as it stands."""
    if error.retry_after_s is not None:
        return error.retry_after_s
    return DEFAULT_RETRY_AFTER_S if status_of(error).transient else None


def error_metadata(error: SessileError) -> dict[str, str]:
    """What else the error knows, as text: goes into ErrorInfo, and over HTTP into ``error.details``."""
    metadata: dict[str, str] = {}
    if error.field is not None:
        metadata["field"] = error.field
    if error.remedy is not None:
        metadata["remedy"] = error.remedy
    match error:
        case ContextOverflow():
            metadata["limit"] = str(error.limit)
        case StaleVersion():
            metadata |= {"expected": str(error.expected), "actual": str(error.actual)}
        case ModelChanged():
            metadata["session_fingerprint"] = error.session_fingerprint
            metadata["server_fingerprint"] = error.server_fingerprint
        case _:
            pass
    return metadata


def error_from_wire(
    reason: str, message: str, metadata: Mapping[str, str], retry_after: float | None = None
) -> SessileError | None:
    """The typed error that a server meant; None for a reason that this version does not know."""
    row = _BY_REASON.get(reason)
    if row is None:
        return None
    error = _construct(row.error, message, metadata)
    error.field = metadata.get("field", error.field)
    error.remedy = metadata.get("remedy", error.remedy)
    error.retry_after_s = retry_after
    return error


def _construct(error_class: type[SessileError], message: str, metadata: Mapping[str, str]) -> SessileError:
    if issubclass(error_class, ContextOverflow):
        return error_class(message, limit=_integer(metadata, "limit"))
    if issubclass(error_class, StaleVersion):
        return error_class(message, expected=_integer(metadata, "expected"), actual=_integer(metadata, "actual"))
    if issubclass(error_class, ModelChanged):
        return error_class(
            message,
            session_fingerprint=metadata.get("session_fingerprint", ""),
            server_fingerprint=metadata.get("server_fingerprint", ""),
        )
    return error_class(message)


def _integer(metadata: Mapping[str, str], key: str) -> int:
    try:
        return int(metadata.get(key, "0"))
    except ValueError:
        return 0
