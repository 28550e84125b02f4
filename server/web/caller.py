"""Who asks for a turn, and in which lane it runs."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec
from starlette.requests import Request

from ...sessions.errors import RequestError
from ...sessions.manager.requests import Client, CompletionRequest
from ..engine.messages import Priority
from .identity import client_in, client_session, lineage_of


class Lane(enum.Enum):
    """Live: somebody waits. Offline: a line of a batch, which runs when nothing else wants the engine."""

    LIVE = "live"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class Caller:
    """``client_session``: what the client's headers call its conversation; ``lineage``: and those that it came from."""

    tenant: str
    client_session: str = ""
    lineage: tuple[str, ...] = ()
    lane: Lane = Lane.LIVE

    @classmethod
    def of(cls, request: Request, tenant: str) -> Caller:
        """Who sent an HTTP request."""
        named = client_session(request.headers)
        return cls(tenant, named, lineage_of(request.headers, named))

    def turn(self, asked: CompletionRequest, sent: bytes, body: msgspec.Struct) -> CompletionRequest:
        """The turn that the caller's request ``sent`` (in its parts, ``body``) asks for, as it runs in its lane."""
        client = Client(name=self.client_session or client_in(body), lineage=self.lineage)
        turn = msgspec.structs.replace(asked, sent_body=sent, client_session=self.client_session, client=client)
        return turn if self.lane is Lane.LIVE else msgspec.structs.replace(turn, priority=Priority.BATCH)

    def check_stream(self, stream: bool | None) -> None:
        """Raise RequestError for a stream that nobody would read."""
        if stream and self.lane is Lane.OFFLINE:
            raise RequestError("a request of a batch cannot be streamed", field="stream", remedy="leave it out")
