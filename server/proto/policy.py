"""Persistence policies between their wire form and values."""

from __future__ import annotations

from ...sessions.errors import RequestError
from ...sessions.keeping import Persistence, PersistencePolicy
from . import session_pb2 as pb

WIRE_PERSISTENCE = {
    Persistence.NONE: pb.PERSISTENCE_NONE,
    Persistence.ON_SUSPEND: pb.PERSISTENCE_ON_SUSPEND,
    Persistence.ON_IDLE: pb.PERSISTENCE_ON_IDLE,
    Persistence.ALWAYS: pb.PERSISTENCE_ALWAYS,
}
PERSISTENCE = {wire: persistence for persistence, wire in WIRE_PERSISTENCE.items()}


def read_asked_policy(message: pb.PersistencePolicy) -> PersistencePolicy | None:
    """What a request asks for; None where it leaves the choice to the server."""
    idle_s = message.idle_seconds if message.HasField("idle_seconds") else None
    if message.when == pb.PERSISTENCE_UNSPECIFIED and idle_s is None:
        return None
    when = PERSISTENCE.get(message.when)
    if when is None:
        raise RequestError(
            f"there is no persistence {message.when}", field="persistence.when", remedy="name one, or leave both out"
        )
    return PersistencePolicy(when, idle_s)


def read_policy(message: pb.PersistencePolicy) -> PersistencePolicy:
    """What a server says that holds."""
    idle_s = message.idle_seconds if message.HasField("idle_seconds") else None
    return PersistencePolicy(PERSISTENCE.get(message.when, Persistence.ALWAYS), idle_s)


def write_policy(policy: PersistencePolicy) -> pb.PersistencePolicy:
    return pb.PersistencePolicy(when=WIRE_PERSISTENCE[policy.when], idle_seconds=policy.idle_s)
