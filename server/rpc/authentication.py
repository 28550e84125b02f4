"""The identity of a call over gRPC."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import grpc.aio

from ..identity.api_key import Scope
from ..identity.gate import Gate, Identity

_caller: ContextVar[Identity] = ContextVar("caller")


def identify(gate: Gate, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Note who calls, for the rest of this call. Raises Unauthenticated or PermissionDenied."""
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    identity = gate.identify(metadata.get("authorization"), metadata.get("x-api-key"))
    identity.require(Scope.INFER)
    _caller.set(identity)


def caller() -> Identity:
    """Who makes the present call."""
    return _caller.get()
