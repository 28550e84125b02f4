"""Sessions as their owners see them, and times, between their wire form and values."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from ...sessions.manager.requests import SessionView
from ...sessions.session import SessionState
from . import session_pb2 as pb
from .policy import read_policy, write_policy
from .tools import read_tools, write_tool

WIRE_STATES = {SessionState.OPEN: pb.SESSION_STATE_OPEN, SessionState.CLOSED: pb.SESSION_STATE_CLOSED}
_STATES = {wire: state for state, wire in WIRE_STATES.items()}


def write_session(view: SessionView) -> pb.Session:
    return pb.Session(
        session_id=view.session_id,
        tenant=view.tenant,
        version=view.version,
        state=WIRE_STATES[view.state],
        model=view.model,
        num_tokens=view.num_tokens,
        num_turns=view.num_turns,
        busy=view.busy,
        system=view.system,
        tools=[write_tool(tool) for tool in view.tools],
        parent_session_id=view.parent_session_id or "",
        created_at=write_time(view.created_at),
        updated_at=write_time(view.updated_at),
        persistence=write_policy(view.persistence),
        suspended=view.suspended,
    )


def read_session(message: pb.Session) -> SessionView:
    return SessionView(
        session_id=message.session_id,
        tenant=message.tenant,
        version=message.version,
        state=_STATES.get(message.state, SessionState.OPEN),
        model=message.model,
        num_tokens=message.num_tokens,
        num_turns=message.num_turns,
        busy=message.busy,
        system=message.system if message.HasField("system") else None,
        tools=read_tools(message.tools),
        parent_session_id=message.parent_session_id or None,
        created_at=read_time(message.created_at),
        updated_at=read_time(message.updated_at),
        persistence=read_policy(message.persistence),
        suspended=message.suspended,
    )


def write_time(seconds: float) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromMicroseconds(round(seconds * 1e6))
    return timestamp


def read_time(timestamp: Timestamp) -> float:
    return timestamp.ToMicroseconds() / 1e6
