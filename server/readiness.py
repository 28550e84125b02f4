"""What the server can do now, as its probes tell it: ``/ready``, and gRPC's health service."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

import msgspec

from ..sessions.errors import EngineError, SessileError, StoreError
from .engine.messages import EngineReady, EngineStats
from .engine.supervisor import EngineState
from .error_status import retry_after_s

_DISK = "disk"


class ServerState(enum.StrEnum):
    """From the start of a server to its end."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"  # turns are taken; something of what they leave is not kept
    RESTARTING = "restarting"  # the engine
    DRAINING = "draining"
    FAILED = "failed"


class Persistence(msgspec.Struct, frozen=True, kw_only=True):
    """Why something is not kept on disk at the moment; empty where it is."""

    sessions: str = ""
    kv: str = ""


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """``retry_after_s``: when to ask again, where no turns are taken."""

    state: ServerState
    reason: str
    persistence: Persistence = Persistence()
    retry_after_s: float = 0.0

    @property
    def takes_turns(self) -> bool:
        """Whether a turn that is sent now would be run."""
        return self.state in (ServerState.READY, ServerState.DEGRADED)

    @property
    def takes_changes(self) -> bool:
        """Whether sessions can be opened and changed, too."""
        return self.takes_turns and not self.persistence.sessions


class Engine(Protocol):
    """What is asked of the engine's client."""

    @property
    def info(self) -> EngineReady: ...

    @property
    def state(self) -> EngineState: ...

    @property
    def stats(self) -> EngineStats: ...


def readiness(
    engine: Engine, check_admission: Callable[[], None], store_failure: Callable[[], StoreError | None]
) -> Readiness:
    """As things stand at this moment. ``check_admission`` raises Draining; ``store_failure`` says why no change of a
    session can be written."""
    try:
        check_admission()
    except SessileError as error:
        return _refusing(ServerState.DRAINING, error)
    try:
        info = engine.info
        if engine.state is not EngineState.READY:
            raise EngineError(f"the engine is {engine.state.value}")
    except SessileError as error:
        return _refusing(_ENGINE_STATES.get(engine.state, ServerState.FAILED), error)
    failure = store_failure()
    persistence = Persistence(
        sessions="" if failure is None else str(failure),
        kv=next((tier.unavailable for tier in engine.stats.tiers if tier.tier == _DISK), ""),
    )
    lost = [
        f"{what} not kept: {why}" for what, why in (("sessions", persistence.sessions), ("KV", persistence.kv)) if why
    ]
    return Readiness(
        state=ServerState.DEGRADED if lost else ServerState.READY,
        reason="; ".join([f"{info.model} is loaded", *lost]),
        persistence=persistence,
    )


_ENGINE_STATES = {
    EngineState.STARTING: ServerState.STARTING,
    EngineState.READY: ServerState.STARTING,  # it said so, and is not known yet
    EngineState.RESTARTING: ServerState.RESTARTING,
}


def _refusing(state: ServerState, error: SessileError) -> Readiness:
    return Readiness(state=state, reason=str(error), retry_after_s=retry_after_s(error) or 1.0)
