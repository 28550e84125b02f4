"""Errors on the gRPC wire: google.rpc.Status with details, from the table of ``server/error_status.py`` and back."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from ...sessions.errors import RequestError, SessileError
from ..error_status import DOMAIN, error_from_wire, error_metadata, retry_after_s, status_of

DETAILS_KEY = "grpc-status-details-bin"


def to_status(error: SessileError) -> status_pb2.Status:
    """The error with all that it knows."""
    row = status_of(error)
    details = [_packed(error_details_pb2.ErrorInfo(reason=row.reason, domain=DOMAIN, metadata=error_metadata(error)))]
    if error.field is not None and isinstance(error, RequestError):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=str(error))
        details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    delay = retry_after_s(error)
    if delay is not None:
        duration = Duration()
        duration.FromMicroseconds(round(delay * 1e6))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=duration)))
    code: int = row.grpc_code.value[0]
    return status_pb2.Status(code=code, message=str(error), details=details)


def from_details(details: bytes) -> SessileError | None:
    """The error that a server's status details describe; None if they are of another kind."""
    status = status_pb2.Status.FromString(details)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    _unpack(status.details, info)
    delay = retry.retry_delay.ToMicroseconds() / 1e6 if _unpack(status.details, retry) else None
    if info.domain != DOMAIN:
        return None
    remedy = info.metadata.get("remedy")
    message = status.message.removesuffix(f" ({remedy})") if remedy is not None else status.message
    return error_from_wire(info.reason, message, info.metadata, delay)


def _packed(detail: error_details_pb2.ErrorInfo | error_details_pb2.BadRequest | error_details_pb2.RetryInfo) -> Any:
    packed = Any()
    packed.Pack(detail)
    return packed


def _unpack(details: Iterable[Any], into: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> bool:
    return any(detail.Unpack(into) for detail in details)
