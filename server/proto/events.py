"""What watchers are told, between its wire form and values, both ways."""

from __future__ import annotations

from ...sessions.manager.events import (
    EventsLost,
    Happening,
    KvMoved,
    Missed,
    Movement,
    SessionEvent,
    TurnFailed,
    TurnStarted,
    WatchStarted,
)
from ...sessions.manager.requests import WatchRequest
from ...sessions.manager.turn_events import TurnFinished
from ..error_status import reason_of
from . import session_pb2 as pb
from .responses import read_finished, write_finished
from .usage import read_miss, write_miss
from .views import read_time, write_time

WIRE_TIERS = {"device": pb.TIER_DEVICE, "host": pb.TIER_HOST, "disk": pb.TIER_DISK, "shared": pb.TIER_SHARED}
TIERS = {wire: tier for tier, wire in WIRE_TIERS.items()}


def read_watch(message: pb.WatchRequest, tenant: str) -> WatchRequest:
    return WatchRequest(session_id=message.session_id or None, tenant=tenant)


def write_watch(request: WatchRequest) -> pb.WatchRequest:
    return pb.WatchRequest(session_id=request.session_id or "", tenant=request.tenant)


def write_session_event(event: SessionEvent) -> pb.WatchResponse:
    message = pb.WatchResponse(at=write_time(event.at), session_id=event.session_id)
    match event.what:
        case WatchStarted():
            message.started.SetInParent()
        case TurnStarted(version=version, prompt_tokens=prompt_tokens):
            message.turn_started.CopyFrom(pb.TurnStarted(version=version, prompt_tokens=prompt_tokens))
        case TurnFinished():
            message.turn_finished.CopyFrom(write_finished(event.what))
        case TurnFailed(error=error, message=said):
            message.turn_failed.CopyFrom(pb.TurnFailed(reason=reason_of(error), message=said))
        case KvMoved():
            getattr(message, event.what.movement.value).CopyFrom(_write_moved(event.what))
        case Missed(miss=miss):
            message.miss.CopyFrom(write_miss(miss))
        case EventsLost(events=events):
            message.lost.CopyFrom(pb.EventsLost(events=events))
    return message


def _write_moved(moved: KvMoved) -> pb.KvMoved:
    return pb.KvMoved(tokens=moved.tokens, tier=WIRE_TIERS.get(moved.tier, pb.TIER_UNSPECIFIED))


def read_session_event(message: pb.WatchResponse) -> SessionEvent | None:
    """The event; None for a kind that this version does not know."""
    what = _read_what(message)
    if what is None:
        return None
    return SessionEvent(at=read_time(message.at), what=what, session_id=message.session_id)


def _read_what(message: pb.WatchResponse) -> Happening | None:
    match message.WhichOneof("event"):
        case "started":
            return WatchStarted()
        case "turn_started":
            started = message.turn_started
            return TurnStarted(version=started.version, prompt_tokens=started.prompt_tokens)
        case "turn_finished":
            return read_finished(message.turn_finished, message.session_id)
        case "turn_failed":
            return TurnFailed(error=message.turn_failed.reason, message=message.turn_failed.message)
        case "miss":
            return Missed(miss=read_miss(message.miss))
        case "lost":
            return EventsLost(events=message.lost.events)
        case "demoted" | "loaded" | "evicted" | "expired" as movement:
            moved: pb.KvMoved = getattr(message, movement)
            tier = TIERS.get(moved.tier, "")
            return KvMoved(movement=Movement(movement), tokens=moved.tokens, tier=tier)
        case _:
            return None
