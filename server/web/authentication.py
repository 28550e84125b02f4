"""The identity of an HTTP request."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request

from ..identity.calls import scope_of_path
from ..identity.gate import ANYBODY, Gate, Identity


def authentication(gate: Gate) -> Callable[..., None]:
    """A dependency of all routes: it stands before everything else that is done for a request."""

    def identify(request: Request) -> None:
        """Raises Unauthenticated or PermissionDenied."""
        scope = scope_of_path(request.url.path)
        if scope is None:
            return
        identity = gate.identify(request.headers.get("authorization"), request.headers.get("x-api-key"))
        identity.require(scope)
        request.state.identity = identity

    return identify


def identity_of(request: Request) -> Identity:
    """Who sent the request, as the dependency found out."""
    identity = getattr(request.state, "identity", ANYBODY)
    assert isinstance(identity, Identity)
    return identity
