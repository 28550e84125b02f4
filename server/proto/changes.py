"""What every change of a session carries, between its wire form and values."""

from __future__ import annotations

from typing import Any

from ...sessions.manager.requests import Mutation
from . import session_pb2 as pb

ChangeMessage = (
    pb.AppendRequest
    | pb.GenerateRequest
    | pb.ForkRequest
    | pb.RollbackRequest
    | pb.CloseRequest
    | pb.HintRequest
    | pb.SuspendRequest
    | pb.ResumeRequest
)


def read_change(message: ChangeMessage, tenant: str) -> dict[str, Any]:
    return {
        "session_id": message.session_id,
        "tenant": tenant,
        "expected_version": message.expected_version if message.HasField("expected_version") else None,
        "request_id": message.request_id or None,
    }


def write_change(message: ChangeMessage, request: Mutation) -> None:
    message.session_id = request.session_id
    message.tenant = request.tenant
    message.request_id = request.request_id or ""
    if request.expected_version is not None:
        message.expected_version = request.expected_version
