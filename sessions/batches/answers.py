"""The lines of output and error files, in OpenAI's shape."""

from __future__ import annotations

import msgspec

from ..ids import unguessable


class _Response(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct, frozen=True):
    code: str
    message: str


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    custom_id: str
    response: _Response | None = None
    error: _Error | None = None


def response_line(custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """A request that was answered; ``body`` is JSON."""
    response = _Response(status, request_id, msgspec.Raw(body))
    return _one_line(_Line(id=_new_id(), custom_id=custom_id, response=response))


def error_line(custom_id: str, code: str, message: str) -> bytes:
    """A request that never ran."""
    return _one_line(_Line(id=_new_id(), custom_id=custom_id, error=_Error(code, message)))


def _one_line(line: _Line) -> bytes:
    """As JSON that is one line to everybody: many readers split text at what Unicode calls a line's end, too."""
    written = msgspec.json.encode(line)
    for character in "\x85\u2028\u2029":
        written = written.replace(character.encode(), b"\\u%04x" % ord(character))
    return written


def _new_id() -> str:
    return unguessable("batch_req_")
