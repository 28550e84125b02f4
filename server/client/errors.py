"""What a caller of the client may catch, beside the errors of ``sessions/errors.py`` that a server sends.

SessileError
├── ConnectionLost     no server answers there, or it went away and did not come back in time
│   └── TurnInterrupted    a turn broke off in its middle and could not be taken up again
├── DeadlineExceeded   the call's own time limit passed, or one that the server has for it
└── CallFailed         any other status of gRPC; ``code`` says which
"""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from ...sessions.errors import DeadlineExceeded, SessileError
from ..proto.errors import DETAILS_KEY, from_details


class ConnectionLost(SessileError):
    """No server answers, or it went away; the same request may be sent again."""


class TurnInterrupted(ConnectionLost):
    """A turn broke off after some of its tokens were delivered, and said something else when it ran again.

    The session holds nothing of it, or all that the second run said if that was over already: refresh it to see.
    """


class CallFailed(SessileError):
    """A status that no server of ours sends on purpose."""

    def __init__(self, message: str, *, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.code = code


def from_rpc_error(error: grpc.aio.AioRpcError) -> SessileError:
    """The error that the server meant, or the one that kept it from answering."""
    metadata: Any = error.trailing_metadata()
    for key, value in metadata or ():
        meant = from_details(value) if key == DETAILS_KEY else None
        if meant is not None:
            return meant
    code, details = error.code(), error.details() or ""
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            return ConnectionLost(f"the server cannot be reached: {details}", remedy="check its address and health")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded("the call's time limit passed")
        case _:
            return CallFailed(f"{code.name}: {details}", code=code)


def may_be_sent_again(error: SessileError) -> bool:
    """Whether the same request, under the same id, may succeed in a moment."""
    return isinstance(error, ConnectionLost) or error.retry_after_s is not None
