"""The errors of Sessile.

    SessileError
    ├── ConfigError            a key of the configuration, a flag or an environment variable
    ├── ModelError             a model's files: missing, damaged, of another shape, of an unknown family
    ├── RequestError           a request that can never succeed as it stands
    │   └── ContextOverflow    more tokens than the model's context or the KV pool can hold
    ├── SessionError
    │   ├── SessionNotFound    unknown, closed, or another tenant's
    │   ├── SessionBusy        a turn is running
    │   ├── StaleVersion       ``expected_version`` is not the session's version
    │   └── ModelChanged       the session was written with another model or tokenizer
    ├── Unauthenticated        no valid API key
    ├── PermissionDenied       the API key is not good for this
    ├── StoreError             the session store cannot be read or written
    │   └── StoreUnavailable   nothing can be written at the moment: the disk is full or fails
    ├── CapacityError          queue or budget full; try again later
    ├── DeadlineExceeded       the turn's deadline passed while it waited, or its client was waited for too long
    ├── Draining               the server is shutting down
    └── EngineError            the engine died or is restarting

Each says what is wrong in one sentence, names the field where there is one, and says what to do about it.
"""

from __future__ import annotations

MAX_MESSAGE_BYTES = 2000
_CUT = " …"


class SessileError(Exception):
    """Base of all errors that a user may see.

    ``message`` has ``MAX_MESSAGE_BYTES`` at most: what a client sent may stand in it, and trailers of gRPC have 8 KiB.
    ``field`` is the path of the offending input (``"sampling.temperature"``), ``remedy`` what to do instead and
    ``retry_after_s`` after how many seconds the same request may succeed (None: never, as it stands).
    """

    def __init__(
        self, message: str, *, field: str | None = None, remedy: str | None = None, retry_after_s: float | None = None
    ) -> None:
        self.message = _cut(message)
        super().__init__(self.message)
        self.field = field
        self.remedy = remedy
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message if self.remedy is None else f"{self.message} ({self.remedy})"


def _cut(message: str) -> str:
    sent = message.encode(errors="replace")
    if len(sent) <= MAX_MESSAGE_BYTES:
        return message
    return sent[: MAX_MESSAGE_BYTES - len(_CUT.encode())].decode(errors="ignore") + _CUT


class ConfigError(SessileError):
    """The configuration cannot be used; ``field`` is the key."""


class ModelError(SessileError):
    """A model cannot be loaded; the message names the file or the tensor."""


class RequestError(SessileError):
    """The request can never succeed as it stands; ``field`` names what to change."""


class ContextOverflow(RequestError):
    """The prompt, or the prompt and the tokens asked for, exceed ``limit`` tokens."""

    def __init__(self, message: str, *, limit: int, field: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, field=field, remedy=remedy)
        self.limit = limit


class SessionError(SessileError):
    """Base of the errors about one session."""


class SessionNotFound(SessionError):
    """No such open session for this tenant."""


class SessionBusy(SessionError):
    """A turn is running in this session; it is not disturbed."""


class StaleVersion(SessionError):
    """The caller's ``expected_version`` is not the session's version."""

    def __init__(self, message: str, *, expected: int, actual: int) -> None:
        super().__init__(message, field="expected_version", remedy="Get the session and decide again")
        self.expected = expected
        self.actual = actual


class ModelChanged(SessionError):
    """The session's tokens belong to another model or tokenizer."""

    def __init__(self, message: str, *, session_fingerprint: str, server_fingerprint: str) -> None:
        super().__init__(message, field="model", remedy="serve the session's model, or open a new session")
        self.session_fingerprint = session_fingerprint
        self.server_fingerprint = server_fingerprint


class Unauthenticated(SessileError):
    """There is no valid API key with the request."""


class PermissionDenied(SessileError):
    """The request's API key is not good for what it asks."""


class StoreError(SessileError):
    """The session store cannot be read or written."""


class StoreUnavailable(StoreError):
    """No change of a session can be written at the moment; nothing of this one was kept."""


class CapacityError(SessileError):
    """A queue or a budget is full; ``retry_after_s`` says when to try again."""


class DeadlineExceeded(SessileError):
    """A time limit passed: the turn's before the engine had begun with it, the call's, or that for its client to send a
    message or to read its answer.

    Of a turn that the engine had not begun, and of a request that did not come whole, nothing was committed. A call
    whose own limit passed, or whose answer was not read to its end, may have done all that it was to do: the same
    request under the same ``request_id`` tells, and so does the session's version.
    """


class Draining(SessileError):
    """The server is shutting down and takes no new work."""


class EngineError(SessileError):
    """The engine died or is restarting; the turn may be sent again after ``retry_after_s``."""
