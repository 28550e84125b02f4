"""What watchers of sessions are told."""

from __future__ import annotations

import enum

import msgspec

from ..errors import SessileError
from .turn_events import Miss, TurnFinished


class WatchStarted(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """What happens from now on is told. Always the first."""


class TurnStarted(msgspec.Struct, frozen=True, kw_only=True, tag="turn_started"):
    """A turn or an append began; ``version`` is the one that it changes."""

    version: int
    prompt_tokens: int


class TurnFailed(msgspec.Struct, frozen=True, kw_only=True, tag="turn_failed"):
    """A turn ended without a result. ``error`` is the name of the error's class, ``Cancelled`` if the caller left."""

    error: str
    message: str


class Movement(enum.StrEnum):
    """What KV did."""

    DEMOTED = "demoted"
    LOADED = "loaded"
    EVICTED = "evicted"
    EXPIRED = "expired"


class KvMoved(msgspec.Struct, frozen=True, kw_only=True, tag="kv_moved"):
    """``tokens`` tokens came to ``tier``, or were dropped from it; of EXPIRED: a retention ended, nothing moved."""

    movement: Movement
    tokens: int
    tier: str


class Missed(msgspec.Struct, frozen=True, kw_only=True, tag="miss"):
    """A turn computed what it need not have; told after its end."""

    miss: Miss


class EventsLost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """So many events, or more, were not told: the watcher was too slow. 0: how many is not known; the server could not
    hear of them."""

    events: int


def failure_of(error: BaseException) -> TurnFailed:
    """What watchers are told of a turn that ended with ``error``."""
    if isinstance(error, SessileError):
        return TurnFailed(error=type(error).__name__, message=str(error))
    return TurnFailed(error="Cancelled", message="the caller left, or the server was stopped")


Happening = WatchStarted | TurnStarted | TurnFinished | TurnFailed | Missed | KvMoved | EventsLost


class SessionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """``at``: seconds since the epoch. ``session_id``: empty where no session is concerned."""

    at: float
    what: Happening
    session_id: str = ""
