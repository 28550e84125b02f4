"""Sessions as their owners see them."""

from __future__ import annotations

import msgspec

from ..ids import unguessable
from ..keeping import PersistencePolicy
from ..session import Session
from .requests import SessionView


def view_of(session: Session, policy: PersistencePolicy, *, busy: bool = False) -> SessionView:
    """One session; ``policy`` is the server's, for sessions that have none of their own."""
    return SessionView(
        session_id=session.session_id,
        tenant=session.tenant,
        version=session.version,
        state=session.state,
        model=session.model.name,
        num_tokens=session.place.num_tokens,
        num_turns=session.place.num_turns,
        busy=busy,
        system=session.system,
        tools=session.tools,
        parent_session_id=session.parent_session_id,
        created_at=session.created_at,
        updated_at=session.updated_at,
        persistence=session.keeping.policy(policy),
        suspended=session.keeping.suspended,
    )


def summary_of(session: Session, policy: PersistencePolicy, *, busy: bool) -> SessionView:
    """One session as lists show it."""
    return msgspec.structs.replace(view_of(session, policy, busy=busy), system=None, tools=())


def new_session_id(now: float) -> str:
    """Ids sort by the time of opening, which is all that can be known of one beforehand."""
    return unguessable(f"ses_{int(now * 1000):012x}")
