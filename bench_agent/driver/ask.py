"""What is asked of a server in one turn, whatever the wire."""

from __future__ import annotations

from typing import Protocol

import msgspec

from ..errors import TargetError
from ..workload.plan import Message
from .observation import Observation


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the answer is sampled. ``exact_length``: nothing but ``max_tokens`` ends it."""

    max_tokens: int = 64
    exact_length: bool = True
    temperature: float = 0.0
    seed: int | None = None
    logprobs: int | None = None


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a session.

    ``conversation`` is all of it, ``new`` its last messages, which come after the answer of turn ``continues``; or
    ``text`` is the whole prompt. ``closes_branch``: no later turn goes on from what came after ``continues``.
    """

    index: int
    continues: int | None = None
    conversation: tuple[Message, ...] = ()
    new: tuple[Message, ...] = ()
    text: str | None = None
    tools: tuple[dict[str, object], ...] = ()
    sampling: Sampling = Sampling()
    closes_branch: bool = False


class Conversation(Protocol):
    """A session's side of a driver. Its turns may run at the same time."""

    async def turn(self, ask: Ask, seen: Observation) -> None:
        """Run one turn and note what is seen. Raises TargetError; what was seen until then stays in ``seen``."""
        ...

    async def close(self) -> None:
        """The session is over."""
        ...


class Driver(Protocol):
    """One way to reach one server. Made, used and closed inside one event loop."""

    wire: str

    def conversation(self, session_id: str) -> Conversation:
        """A new session."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class TurnRefused(TargetError):
    """The server refused the turn, or ended it with an error of its own."""


class ServerBusy(TargetError):
    """The server asks to come back later: the turn may be sent again after ``retry_after_s``."""


class ServerUnreachable(TargetError):
    """Nobody answers, or the connection broke."""


class ServerSilent(ServerUnreachable):
    """Nothing came within the time of a turn: to wait as long again would be another turn."""
